#!/usr/bin/env bash
# The answer of a fasthttp server to a request whose body is one byte larger than
# MaxRequestBodySize.
#
# Seen with github.com/valyala/fasthttp v1.69.0: 400 "Error when parsing request", where net/http's
# MaxBytesHandler answers 413. The error is in ErrorHandler as ErrBodyTooLarge: a server that wants
# clients to know has to answer 413 there itself.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module finding

go 1.24

require github.com/valyala/fasthttp v1.69.0
EOF
cat >main.go <<'EOF'
package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/valyala/fasthttp"
)

func post(url string, n int) string {
	answer, err := http.Post(url, "text/plain", strings.NewReader(strings.Repeat("x", n)))
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	return answer.Status
}

func serve(s *fasthttp.Server) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go s.Serve(l)
	return "http://" + l.Addr().String()
}

func main() {
	handler := func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(200) }
	plain := serve(&fasthttp.Server{Handler: handler, MaxRequestBodySize: 1024})
	fmt.Println("as large as the limit:", post(plain, 1024))
	fmt.Println("one byte more:", post(plain, 1025))
	told := serve(&fasthttp.Server{Handler: handler, MaxRequestBodySize: 1024, ErrorHandler: func(ctx *fasthttp.RequestCtx, err error) {
		if errors.Is(err, fasthttp.ErrBodyTooLarge) {
			ctx.SetStatusCode(413)
		}
	}})
	fmt.Println("with an ErrorHandler:", post(told, 1025))
}
EOF
go mod tidy >/dev/null 2>&1
go run . | tee out
diff out - <<'EOF'
as large as the limit: 200 OK
one byte more: 400 Bad Request
with an ErrorHandler: 413 Request Entity Too Large
EOF
echo "as found"
