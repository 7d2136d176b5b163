-- What is stored beside jobs and runs, by name. Names and labels are UTF-8 in bytea, whose order is that of code
-- points; a label is the JSON text of [key, value], `labels` is all of them as a JSON object.

CREATE TABLE horarium.records (
    namespace_id int4 NOT NULL,
    version int8 NOT NULL,
    name bytea NOT NULL,
    labels bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (namespace_id, name)
);

CREATE TABLE horarium.record_labels (
    namespace_id int4 NOT NULL,
    name bytea NOT NULL,
    label bytea NOT NULL,
    PRIMARY KEY (namespace_id, name, label)
);

CREATE INDEX record_labels_by_label ON horarium.record_labels (namespace_id, label, name);
