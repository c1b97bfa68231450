#!/usr/bin/env bash
# The OTLP exporter for traces over plain HTTP imports gRPC, whose golang.org/x/net/trace
# executes templates. Templates call methods by name, so Go's linker keeps every exported
# method of every reachable type, in the whole program.
#
# Seen with go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp v1.47.0 and Go 1.26:
# a program that only creates the exporter has text/template.(*Template).Execute in it, and the
# packages google.golang.org/grpc and golang.org/x/net/trace. A larger program grows by more than
# the exporter: ours, of 30 MB, by 10 MB.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.25

require go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp v1.47.0
MOD
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
)

func main() {
	e, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL("http://127.0.0.1:4318/v1/traces"))
	fmt.Println(e != nil, err)
}
GO
go mod tidy 2>/dev/null
go build -o finding .
go list -deps . >packages
go tool nm finding >symbols
for package in google.golang.org/grpc golang.org/x/net/trace html/template; do
  grep -qx "$package" packages || { echo "changed: $package is not imported any more"; exit 1; }
done
# The linker keeps the function only where something reachable calls it.
grep -q 'text/template\.(\*Template)\.Execute$' symbols ||
  { echo "changed: no template is executed"; exit 1; }
echo "otlptracehttp v1.47.0: gRPC and the execution of templates are linked in, $(stat -c %s finding) bytes"
