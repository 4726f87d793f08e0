-- Called by migrate::check. The newest migration that was applied to this database.
-- Locks nothing.
-- Never zero rows: always one. NULL: the table of migrations is empty. No such table: the database is not migrated.
SELECT max(version) AS version
FROM outbox_migrations
WHERE success
