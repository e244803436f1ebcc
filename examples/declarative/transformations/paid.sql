-- Orders that were paid, as a table of their own.
CREATE STREAMING TABLE paid AS
SELECT uid, amount FROM STREAM(orders) WHERE tags = 'PAID';

-- Computed anew in every run.
CREATE MATERIALIZED VIEW by_user AS
SELECT uid, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY uid;
