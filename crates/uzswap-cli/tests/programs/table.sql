create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < ROWS)
insert into t select i, 'row ' || i || ' with some more text in it, and more of the same text in it, and more of the same text in it ' || (i * 7919 % 300007) from n;
create index b on t(b);
select count(*), sum(length(b)), min(b), max(b), sum(a * length(b)) from t where b > 'row 2';
update t set b = b || ' changed' where a % 3 = 0;
delete from t where a % 5 = 0;
select count(*), sum(length(b)), min(b), max(b), sum(a * length(b)) from t where b > 'row 2';
select group_concat(a) from (select a from t order by b limit 50);
