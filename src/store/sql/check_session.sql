-- Called by Store::checks. What kind of server this is, and what a connection to it is set to.
-- Locks nothing.
-- Never zero rows: always one.
SELECT current_setting('server_version_num')::integer / 10000 AS "major!",
       current_setting('server_version') AS "version!",
       current_setting('transaction_read_only') = 'on' AS "is_read_only!",
       current_setting('transaction_isolation') AS "isolation!",
       current_setting('plan_cache_mode') = 'force_generic_plan'
           AND current_setting('enable_seqscan') = 'off'
           OR current_setting('plan_cache_mode') = 'force_custom_plan'
           AND current_setting('enable_bitmapscan') = 'off' AS "has_planner_settings!"
