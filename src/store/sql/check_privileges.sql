-- Called by Store::checks. Whether this role may do what a dispatcher does to the outbox.
-- Locks nothing.
-- Never zero rows: always one.
SELECT current_user::text AS "role!",
       has_table_privilege('outbox', 'SELECT') AS "may_select!",
       has_table_privilege('outbox', 'UPDATE') AS "may_update!"
