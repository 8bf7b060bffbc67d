BEGIN TRANSACTION;
CREATE TABLE intervalq_clock (seen INTEGER NOT NULL);
INSERT INTO "intervalq_clock" VALUES(0);
CREATE TABLE intervalq_locks (
    name TEXT PRIMARY KEY NOT NULL, owner TEXT NOT NULL, fence INTEGER NOT NULL, until INTEGER NOT NULL,
    expiry INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE intervalq_marks (
    queue TEXT NOT NULL, key TEXT NOT NULL, id TEXT NOT NULL, until INTEGER, PRIMARY KEY (queue, key));
INSERT INTO "intervalq_marks" VALUES('q','d','once',NULL);
INSERT INTO "intervalq_marks" VALUES('q','e','twice',1700000060000005);
CREATE TABLE intervalq_outcome_days (day INTEGER PRIMARY KEY);
INSERT INTO "intervalq_outcome_days" VALUES(19676);
CREATE TABLE intervalq_outcomes_19676 (
    id TEXT NOT NULL, queue TEXT NOT NULL, key TEXT, state TEXT NOT NULL, json TEXT NOT NULL,
    result TEXT NOT NULL, attempts INTEGER NOT NULL, errors TEXT NOT NULL, created INTEGER NOT NULL,
    started INTEGER NOT NULL, ended INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    until INTEGER NOT NULL);
INSERT INTO "intervalq_outcomes_19676" VALUES('kept','kept',NULL,'done','[1]','"first"',1,'',1700000000000002,1700000000000004,1700000000000005,'host',7,1700086400000005);
CREATE TABLE intervalq_sessions (
    id TEXT PRIMARY KEY NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, consumer TEXT NOT NULL,
    expiry INTEGER NOT NULL, started INTEGER NOT NULL, beaten INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "intervalq_sessions" VALUES('lost','host',8,'',1000000,1700000000000000,1700000000000000);
INSERT INTO "intervalq_sessions" VALUES('old','host',7,'workers',3600000000,1700000000000000,1700000000000000);
CREATE TABLE intervalq_tasks (
    id TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, queue TEXT NOT NULL, at INTEGER NOT NULL,
    json TEXT NOT NULL, key TEXT, place INTEGER NOT NULL, waiting INTEGER NOT NULL, session TEXT,
    until INTEGER, claims INTEGER NOT NULL, attempt INTEGER NOT NULL, error TEXT NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL, dedupe TEXT, dedupe_for INTEGER NOT NULL,
    ready INTEGER, begun INTEGER NOT NULL DEFAULT 0, alone INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0, progress TEXT NOT NULL DEFAULT '',
    priority INTEGER NOT NULL DEFAULT 0, keep_for INTEGER NOT NULL DEFAULT 0,
    errors TEXT NOT NULL DEFAULT '', per_key INTEGER NOT NULL DEFAULT 1,
    follow_up TEXT NOT NULL DEFAULT '', awaits INTEGER NOT NULL DEFAULT 0);
INSERT INTO "intervalq_tasks" VALUES('held',1,'held',1700000000000000,'{"n":1}',NULL,0,0,'old',NULL,1,1,'',1700000000000000,1700000000000001,NULL,0,NULL,1,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('leased',1,'leased',1700000000000000,'2',NULL,0,0,'old',1700000030000001,1,1,'',1700000000000000,1700000000000001,NULL,0,1700000030000001,1,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('orphan',1,'orphans',1700000000000000,'"ü"',NULL,0,0,'lost',NULL,1,1,'',1700000000000000,1700000000000001,NULL,0,NULL,1,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('k1',1,'line',1700000000000002,'null','k',1,0,'old',NULL,1,1,'',1700000000000002,1700000000000003,NULL,0,NULL,1,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('k2',0,'line',1700000000000002,'null','k',2,1,NULL,NULL,0,0,'',1700000000000002,1700000000000002,NULL,0,NULL,0,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('k3',0,'line',1700000000000002,'null','k',3,1,NULL,NULL,0,0,'',1700000000000002,1700000000000002,NULL,0,NULL,0,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('0190a5c2-1111-7abc-8def-000000000000',0,'q',1700000000000004,'[1]',NULL,0,0,NULL,NULL,0,0,'',1700000000000004,1700000000000004,NULL,0,1700000000000004,0,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('once',0,'q',1700000000000004,'4',NULL,0,0,NULL,NULL,0,0,'',1700000000000004,1700000000000004,'d',60000000,1700000000000004,0,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('tried',0,'q',1700000000000004,'3',NULL,0,0,NULL,NULL,0,2,'ValueError: boom',1700000000000004,1700000000000004,NULL,0,1700000000000004,0,0,0,'',0,0,'',1,'',0);
INSERT INTO "intervalq_tasks" VALUES('later',0,'q',1700000060000000,'2',NULL,0,0,NULL,NULL,0,0,'',1700000000000004,1700000000000004,NULL,0,1700000060000000,0,0,0,'',0,0,'',1,'',0);
CREATE TABLE intervalq_tasks_version (layout INTEGER NOT NULL);
INSERT INTO "intervalq_tasks_version" VALUES(6);
CREATE INDEX intervalq_tasks_ready ON intervalq_tasks (queue, priority, ready) WHERE ready IS NOT NULL;
CREATE INDEX intervalq_tasks_session ON intervalq_tasks (session) WHERE session IS NOT NULL;
CREATE INDEX intervalq_tasks_key ON intervalq_tasks (queue, key, place) WHERE key IS NOT NULL;
CREATE INDEX intervalq_tasks_waiting ON intervalq_tasks (queue, at, waiting) WHERE waiting;
CREATE INDEX intervalq_tasks_again ON intervalq_tasks (queue, claims)
    WHERE claims > 0 AND session IS NULL;
CREATE INDEX intervalq_marks_until ON intervalq_marks (until) WHERE until IS NOT NULL;
CREATE INDEX intervalq_locks_until ON intervalq_locks (until);
CREATE INDEX intervalq_outcomes_19676_id ON intervalq_outcomes_19676 (id);
COMMIT;
