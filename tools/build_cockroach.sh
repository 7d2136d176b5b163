#!/usr/bin/env bash
# CockroachDB 20.1.17 (OSS, Pebble only, no UI) out of the Go module proxy and Debian's golang-1.19. Needs: a Go, gcc,
# awk, sed, 3 GB; five minutes on two cores. The program is FOLDER/bin/cockroach; FOLDER is the user's cache if left out.
# BSL with change date 2023-04-01, Apache 2.0 since; no CCL code is built.
set -euo pipefail
W=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/horarium/cockroach}; mkdir -p "$W"; cd "$W"; W=$PWD
exec 9> lock; flock 9  # two builds at once would edit one tree
[ ! -x bin/cockroach ] || exit 0
# 1. Go 1.19 beside whatever Go there is (Debian bookworm; nothing is installed)
mkdir -p go119; (cd go119; apt-get download golang-1.19-go golang-1.19-src; for f in *.deb; do dpkg -x "$f" .; done)
export GOROOT=$W/go119/usr/lib/go-1.19 GOBIN=$W/bin GO111MODULE=on GOTOOLCHAIN=local GOFLAGS="-mod=mod -buildvcs=false"
export PATH=$GOROOT/bin:$GOBIN:$PATH
# 2. the source: it must stand under src/github.com/cockroachdb, or execgen panics
SRC=$W/src/github.com/cockroachdb; mkdir -p "$SRC"
MOD=github.com/cockroachdb/cockroach@v20.1.17+incompatible
DIR=$(cd "$W" && go mod download -json $MOD | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
rm -rf "$SRC/cockroach"  # an interrupted build has left a tree that is half edited
cp -r "$DIR" "$SRC/cockroach"; chmod -R u+w "$SRC/cockroach"; cd "$SRC/cockroach"
# 3. a go.mod in place of the vendored tree (Gopkg.lock names commits, which this proxy does not resolve)
cat > go.mod <<'E'
module github.com/cockroachdb/cockroach

go 1.13

require (
	cloud.google.com/go v0.34.0
	github.com/Azure/azure-pipeline-go v0.1.8
	github.com/Azure/azure-storage-blob-go v0.0.0-20190104215108-45d0c5e3638e
	github.com/VividCortex/ewma v1.1.1
	github.com/andy-kimball/arenaskl v0.0.0-20200617143215-f701008588b9
	github.com/apache/arrow/go/arrow v0.0.0-20200610220642-670890229854
	github.com/apache/thrift v0.0.0-20181211084444-2b7365c54f82
	github.com/aws/aws-sdk-go v1.16.19
	github.com/axiomhq/hyperloglog v0.0.0-20181223111420-4b99d0c2c99e
	github.com/biogo/store v0.0.0-20160505134755-913427a1d5e8
	github.com/cenkalti/backoff v2.1.1+incompatible
	github.com/cockroachdb/apd/v2 v2.0.2
	github.com/cockroachdb/circuitbreaker v2.2.2-0.20190114160014-a614b14ccf63+incompatible
	github.com/cockroachdb/cmux v0.0.0-20170110192607-30d10be49292
	github.com/cockroachdb/cockroach-go v0.0.0-20181001143604-e0a95dfd547c
	github.com/cockroachdb/datadriven v0.0.0-20200212141702-aca09668cb24
	github.com/cockroachdb/errors v1.2.4
	github.com/cockroachdb/gostdlib v1.13.0
	github.com/cockroachdb/logtags v0.0.0-20190617123548-eb05cc24525f
	github.com/cockroachdb/pebble v0.0.0-20200403212304-5761da73f80a
	github.com/cockroachdb/ttycolor v0.0.0-20180709150743-a1d5aaeb377d
	github.com/codahale/hdrhistogram v0.0.0-20161010025455-3a0bb77429bd
	github.com/dgryski/go-metro v0.0.0-20180109044635-280f6062b5bc
	github.com/dustin/go-humanize v1.0.0
	github.com/edsrzf/mmap-go v1.0.0
	github.com/elastic/gosigar v0.10.0
	github.com/elazarl/go-bindata-assetfs v1.0.0
	github.com/facebookgo/clock v0.0.0-20150410010913-600d898af40a
	github.com/getsentry/raven-go v0.2.0
	github.com/gogo/protobuf v1.3.1
	github.com/golang/protobuf v1.3.2
	github.com/golang/snappy v0.0.2-0.20190904063534-ff6b7dc882cf
	github.com/google/btree v1.0.0
	github.com/google/flatbuffers v1.11.0
	github.com/google/pprof v0.0.0-20190109223431-e84dfd68c163
	github.com/googleapis/gax-go v2.0.2+incompatible // indirect
	github.com/grpc-ecosystem/grpc-gateway v1.5.1
	github.com/grpc-ecosystem/grpc-opentracing v0.0.0-20180507213350-8e809c8a8645
	github.com/ianlancetaylor/demangle v0.0.0-20260724033716-83e58baca724 // indirect
	github.com/jackc/pgx v3.6.2+incompatible
	github.com/jaegertracing/jaeger v1.17.1
	github.com/knz/go-libedit v1.10.1
	github.com/knz/strtime v0.0.0-20200318182718-be999391ffa9
	github.com/kr/pretty v0.1.0
	github.com/kr/text v0.1.0
	github.com/lib/pq v1.5.2
	github.com/lightstep/lightstep-tracer-go v0.15.6
	github.com/maruel/panicparse v1.1.2-0.20180806203336-f20d4c4d746f
	github.com/marusama/semaphore v0.0.0-20190110074507-6952cef993b2
	github.com/mattn/go-isatty v0.0.4
	github.com/mitchellh/reflectwalk v1.0.0
	github.com/montanaflynn/stats v0.6.3
	github.com/olekukonko/tablewriter v0.0.4
	github.com/opentracing/opentracing-go v1.0.2
	github.com/opentracing-contrib/go-observer v0.0.0-20170622124052-a52f23424492
	github.com/openzipkin-contrib/zipkin-go-opentracing v0.3.5
	github.com/petermattis/goid v0.0.0-20180202154549-b0b1615b78e5
	github.com/pkg/errors v0.8.1
	github.com/prometheus/client_golang v1.0.0
	github.com/prometheus/client_model v0.0.0-20190129233127-fd36f4220a90
	github.com/prometheus/common v0.4.1
	github.com/rcrowley/go-metrics v0.0.0-20181016184325-3113b8401b8a
	github.com/sasha-s/go-deadlock v0.2.0
	github.com/shirou/gopsutil v2.18.12+incompatible
	github.com/spf13/cobra v0.0.3
	github.com/spf13/pflag v1.0.3
	github.com/stretchr/testify v1.4.0
	go.etcd.io/etcd v0.5.0-alpha.5.0.20190816082442-4a2b4c8f7e0a
	golang.org/x/crypto v0.0.0-20200323165209-0ec3e9974c59
	golang.org/x/exp v0.0.0-20200513190911-00229845015e
	golang.org/x/net v0.0.0-20200602114024-627f9648deb9
	golang.org/x/oauth2 v0.0.0-20190115181402-5dab4167f31c
	golang.org/x/sync v0.0.0-20190911185100-cd5d95a43a6e
	golang.org/x/sys v0.1.0
	golang.org/x/text v0.3.2
	golang.org/x/time v0.0.0-20190308202827-9d24e82272b4
	golang.org/x/tools v0.1.12
	google.golang.org/api v0.1.0
	google.golang.org/grpc v1.23.0
	gopkg.in/yaml.v2 v2.2.2
)

replace github.com/gogo/protobuf => github.com/cockroachdb/gogoproto v1.2.1-0.20190102194534-ca10b809dba0
replace github.com/getsentry/raven-go => github.com/cockroachdb/raven-go v0.0.0-20170605202156-221b2b44fb33
replace github.com/olekukonko/tablewriter => github.com/cockroachdb/tablewriter v0.0.5-0.20200105123400-bd15540e8847
replace gopkg.in/yaml.v2 => github.com/cockroachdb/yaml v0.0.0-20180705215940-0e2822948641
replace golang.org/x/net v0.0.0-20190813000000-74dc4d7220e7 => golang.org/x/net v0.0.0-20190813141303-74dc4d7220e7
E
grep -rl '"github.com/cockroachdb/apd"' pkg --include=*.go | xargs sed -i 's#"github.com/cockroachdb/apd"#"github.com/cockroachdb/apd/v2"#'
sed -i '/benesch\/cgosymbolizer/d' pkg/cli/cli.go
# 4. tools
mkdir -p "$W/tools"; (cd "$W/tools"; [ -f go.mod ] || printf 'module tools\ngo 1.19\n' > go.mod; go get golang.org/x/tools@v0.1.12
  go install golang.org/x/tools/cmd/goyacc golang.org/x/tools/cmd/stringer golang.org/x/tools/cmd/goimports)
# 5. the parser
P=pkg/sql/parser; mkdir -p $P/gen
awk '/func.*sqlSymUnion/ {print $(NF - 1)}' $P/sql.y | sed -e 's/[]\/$*.^|[]/\\&/g' | sed -e "s/^/s_(type|token) <(/" | awk '{print $0")>_\\1 <union> /* <\\2> */_"}' > $P/gen/types.tmp
sed -E -f $P/gen/types.tmp < $P/sql.y | awk -f $P/replace_help_rules.awk | sed -Ee 's,//.*$,,g;s,/[*]([^*]|[*][^/])*[*]/, ,g;s/ +$//g' > $P/gen/sql-gen.y
(cd $P/gen; goyacc -p sql -o sql.go.tmp sql-gen.y)
(printf 'package lex\n\n'; grep '^const [A-Z][_A-Z0-9]* ' $P/gen/sql.go.tmp) > pkg/sql/lex/tokens.go
sed -E 's/^const ([A-Z][_A-Z0-9]*) =.*$/const \1 = lex.\1/g' $P/gen/sql.go.tmp > $P/sql.go; rm -r $P/gen; goimports -w $P/sql.go
awk -f $P/reserved_keywords.awk < $P/sql.y > pkg/sql/lex/reserved_keywords.go
go run -tags all-keywords pkg/sql/lex/all_keywords.go < $P/sql.y > "$W/keywords" && mv "$W/keywords" pkg/sql/lex/keywords.go
awk -f $P/help.awk < $P/sql.y > $P/help_messages.go
# 6. the optimizer
go build -o "$GOBIN/optgen" ./pkg/sql/opt/optgen/cmd/optgen
O=pkg/sql/opt; OPS="$O/ops/*.opt" NORM="$O/norm/rules/*.opt" XFORM="$O/xform/rules/*.opt"
optgen -out $O/memo/expr.og.go exprs $OPS; optgen -out $O/operator.og.go ops $OPS
optgen -out $O/rule_name.og.go rulenames $OPS $NORM $XFORM; optgen -out $O/xform/explorer.og.go explorer $OPS $XFORM
optgen -out $O/norm/factory.og.go factory $OPS $NORM; (cd $O; stringer -output=rule_name_string.go -type=RuleName rule_name.go rule_name.og.go)
# 7. what v1.2.4 of cockroachdb/errors lacks
mkdir -p pkg/util/errhas; cat > pkg/util/errhas/errhas.go <<'E'
// Package errhas has what cockroachdb/errors v1.2.4 lacks.
package errhas

import (
	"reflect"

	"github.com/cockroachdb/errors"
)

// HasType tells if an error in the chain has the type of the reference.
func HasType(err, ref error) bool {
	want := reflect.TypeOf(ref)
	_, has := errors.If(err, func(e error) (interface{}, bool) { return nil, reflect.TypeOf(e) == want })
	return has
}
E
for f in pkg/sql/flowinfra/flow_registry.go pkg/roachpb/errors.go pkg/util/grpcutil/grpc_util.go; do
  sed -i 's/errors\.HasType(/errhas.HasType(/; 0,/^import (/s##import (\n\t"github.com/cockroachdb/cockroach/pkg/util/errhas"#' $f; goimports -w $f; done
# 8. Pebble in RocksDB's place: rocksdb.go keeps only what is plain Go
python3 - <<'E'
src = open('pkg/storage/rocksdb.go').read().split('\n')
at = lambda prefix: next(i for i, l in enumerate(src) if l.startswith(prefix))
tables = '\n'.join(src[at('const ('):at('// RocksDBCache is a wrapper')])
scan = '\n'.join(src[at('// MVCCScanDecodeKeyValue decodes a key/value pair'):at('// rocksdbWritableFile implements')])
open('pkg/storage/rocksdb.go', 'w').write('''package storage

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/cockroach/pkg/base"
	"github.com/cockroachdb/cockroach/pkg/keys"
	"github.com/cockroachdb/cockroach/pkg/roachpb"
	"github.com/cockroachdb/cockroach/pkg/settings"
	"github.com/cockroachdb/cockroach/pkg/storage/enginepb"
	"github.com/cockroachdb/cockroach/pkg/util"
	"github.com/cockroachdb/cockroach/pkg/util/envutil"
	"github.com/cockroachdb/cockroach/pkg/util/humanizeutil"
	"github.com/cockroachdb/cockroach/pkg/util/log"
	"github.com/pkg/errors"
)

var errNoRocksDB = errors.New("built without RocksDB")

var minWALSyncInterval = settings.RegisterDurationSetting(
	"rocksdb.min_wal_sync_interval", "minimum duration between syncs of the RocksDB WAL", 0*time.Millisecond)

var rocksdbConcurrency = envutil.EnvOrDefaultInt("COCKROACH_ROCKSDB_CONCURRENCY", func() int {
	if n := runtime.NumCPU(); n <= 4 {
		return n
	}
	return 4
}())

func InitRocksDBLogger(ctx context.Context) *log.SecondaryLogger {
	return log.NewSecondaryLogger(ctx, nil, "rocksdb", true, false, false)
}

''' + tables + '''
type RocksDBCache struct{}

func NewRocksDBCache(cacheSize int64) RocksDBCache { return RocksDBCache{} }
func (c RocksDBCache) Release()                    {}

type RocksDBConfig struct {
	base.StorageConfig
	ReadOnly                bool
	MaxOpenFiles            uint64
	WarnLargeBatchThreshold time.Duration
	RocksDBOptions          string
}

type RocksDB struct{ Engine }

func (r *RocksDB) GetTickersAndHistograms() (*enginepb.TickersAndHistograms, error) {
	return nil, errNoRocksDB
}
func NewRocksDB(cfg RocksDBConfig, cache RocksDBCache) (*RocksDB, error) { return nil, errNoRocksDB }
func newRocksDBInMem(attrs roachpb.Attributes, cacheSize int64) *RocksDB { panic(errNoRocksDB) }
func goMerge(existing, update []byte) ([]byte, error)                     { panic(errNoRocksDB) }
func goPartialMerge(existing, update []byte) ([]byte, error)              { panic(errNoRocksDB) }
func emptyKeyError() error                                                { return errors.Errorf("attempted access to empty key") }
func RunLDB(args []string)                                                {}
func RunSSTDump(args []string)                                            {}
func ThreadStacks() string                                                { return "" }

func IsValidSplitKey(key roachpb.Key) bool {
	if key.Equal(keys.Meta2KeyMax) {
		return false
	}
	for _, span := range keys.NoSplitSpans {
		if bytes.Compare(key, span.Key) > 0 && bytes.Compare(key, span.EndKey) < 0 {
			return false
		}
	}
	return true
}

func lockFile(filename string) (*os.File, error) {
	f, err := os.OpenFile(filename, os.O_CREATE|os.O_RDWR, 0644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, errors.Wrap(err, "lock")
	}
	return f, nil
}

func unlockFile(lock *os.File) error { return lock.Close() }

''' + scan)
E
goimports -w pkg/storage/rocksdb.go
rm -f pkg/storage/rocksdb_jemalloc.go pkg/storage/enable_cc.cc pkg/storage/*_test.go
sed -i 's/case enginepb.EngineTypePebble:/case enginepb.EngineTypeDefault, enginepb.EngineTypePebble:/; s/case enginepb.EngineTypeDefault, enginepb.EngineTypeRocksDB:/case enginepb.EngineTypeRocksDB:/' pkg/storage/temp_engine.go pkg/storage/in_mem.go pkg/storage/engine.go
sed -i 's/EnvOrDefaultString("COCKROACH_STORAGE_ENGINE", "default")/EnvOrDefaultString("COCKROACH_STORAGE_ENGINE", "pebble")/' pkg/storage/engine.go
sed -i '/^var _ pebble.NeedCompacter/d' pkg/storage/pebble.go
# 9. the vectorized engine
go build -tags stdmalloc -o "$GOBIN/execgen" ./pkg/sql/colexec/execgen/cmd/execgen
for f in $(sed -n '/^  pkg\/.*\.eg\.go/p' Makefile | tr -d '\\ '); do execgen $f > "$W/eg" && mv "$W/eg" $f; done
# 10. the server
mkdir -p pkg/cmd/cockroach-pebble
printf 'package main\n\nimport "github.com/cockroachdb/cockroach/pkg/cli"\n\nfunc main() { cli.Main() }\n' > pkg/cmd/cockroach-pebble/main.go
B=github.com/cockroachdb/cockroach/pkg/build
go build -tags stdmalloc -ldflags "-s -w -X $B.tag=v20.1.17 -X $B.typ=release" -o "$W/whole" ./pkg/cmd/cockroach-pebble
"$W/whole" version
mv "$W/whole" "$GOBIN/cockroach"  # for others it is there as a whole
