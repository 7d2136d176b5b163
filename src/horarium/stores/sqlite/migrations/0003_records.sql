-- What is stored beside jobs and runs, by name. Names and labels are UTF-8 in blobs, whose order is that of code
-- points; a label is the JSON text of [key, value], `labels` is all of them as a JSON object.
CREATE TABLE records (
    num INTEGER PRIMARY KEY,
    namespace_id INTEGER NOT NULL,
    name BLOB NOT NULL,
    version INTEGER NOT NULL,
    labels BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (namespace_id, name)
);

CREATE TABLE record_labels (
    namespace_id INTEGER NOT NULL,
    name BLOB NOT NULL,
    label BLOB NOT NULL,
    PRIMARY KEY (namespace_id, name, label)
) WITHOUT ROWID;

CREATE INDEX record_labels_by_label ON record_labels (namespace_id, label, name);
