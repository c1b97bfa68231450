// Package framing refuses HTTP/1.1 requests whose end is ambiguous (RFC 9112, section 6). A proxy
// in front of a server might take another place for the end of such a request, and would then read
// a different next request. The package is for servers based on fasthttp, whose parser accepts some
// such requests.
package framing

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/valyala/fasthttp"
)

// Check returns why the end of a request is ambiguous, or nil if it is not. It examines the raw
// header, since the header that fasthttp has parsed does not show repeated or overridden fields.
// After an error the caller answers 400 and closes the connection, since it cannot know where
// the next request begins.
func Check(h *fasthttp.RequestHeader) error {
	seen := map[string]string{}
	for line := range bytes.Lines(h.RawHeaders()) {
		line, ok := bytes.CutSuffix(line, []byte("\r\n"))
		if !ok || bytes.IndexByte(line, '\r') >= 0 {
			return errors.New("a header line does not end with CR LF")
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := strings.Cut(string(line), ":")
		if strings.ContainsAny(name, " \t") {
			return fmt.Errorf("whitespace in the field name %.40q, or a folded line", name)
		}
		name = strings.ToLower(name)
		switch name {
		case "content-length", "transfer-encoding", "host":
			if _, repeated := seen[name]; repeated {
				return fmt.Errorf("%s appears more than once", name)
			}
			seen[name] = strings.Trim(value, " \t")
		}
	}
	coding, chunked := seen["transfer-encoding"]
	if !chunked {
		return nil
	}
	if _, both := seen["content-length"]; both {
		return errors.New("both content-length and transfer-encoding are set")
	}
	if !strings.EqualFold(coding, "chunked") || !h.IsHTTP11() {
		return fmt.Errorf("transfer-encoding is %.40q, want chunked, and HTTP/1.1", coding)
	}
	return nil
}
