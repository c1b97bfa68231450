#!/usr/bin/env bash
# A Pebble checkpoint taken right after a write with NoSync.
#
# Seen with github.com/cockroachdb/pebble/v2 v2.1.7: the write is visible to reads of the database
# and missing from the checkpoint, as long as its log block has not been flushed; with
# WithFlushedWAL it is there. A checkpoint is therefore not a copy of what a reader sees.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module finding

go 1.25

require github.com/cockroachdb/pebble/v2 v2.1.7
EOF
cat >main.go <<'EOF'
package main

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func has(db *pebble.DB) bool {
	_, closer, err := db.Get([]byte("key"))
	if errors.Is(err, pebble.ErrNotFound) {
		return false
	}
	must(err)
	must(closer.Close())
	return true
}

func main() {
	fs := vfs.NewMem()
	db, err := pebble.Open("db", &pebble.Options{FS: fs})
	must(err)
	must(db.Set([]byte("key"), []byte("value"), pebble.NoSync))
	fmt.Println("the database has the key:", has(db))
	for i, name := range []string{"plain", "flushed"} {
		options := []pebble.CheckpointOption{pebble.WithFlushedWAL()}[:i]
		must(db.Checkpoint(name, options...))
	}
	for _, name := range []string{"plain", "flushed"} {
		copied, err := pebble.Open(name, &pebble.Options{FS: fs})
		must(err)
		fmt.Printf("the %s checkpoint has it: %v\n", name, has(copied))
		must(copied.Close())
	}
	must(db.Close())
}
EOF
go mod tidy >/dev/null 2>&1
go run . 2>/dev/null | tee out
diff out - <<'EOF'
the database has the key: true
the plain checkpoint has it: false
the flushed checkpoint has it: true
EOF
echo "as found"
