package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

//go:embed web
var web embed.FS

// Files are served below a directory whose name is a digest of all files. New content has a new
// address, so that browsers may cache files forever. The page itself has a fixed address, and
// browsers revalidate it each time.
const (
	indexFile   = "index.html"
	assetsMark  = "{assets}" // in the page: replaced by the directory's name
	digestChars = 16
)

// policy is the page's content security policy: code, styles, images and data only from this
// origin, no inline code or style, no eval, no markup made from strings, and no framing.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; object-src 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// Answer is the response to a request. Body belongs to the site and must not be modified.
type Answer struct {
	Status int // 200 or 304
	Header [][2]string
	Body   []byte
}

// Site holds the files.
type Site struct {
	files map[string]*file // by path below the dashboard's; "" is the page
}

type file struct {
	media  string
	cache  string
	tag    string // without quotes
	plain  []byte
	packed func() []byte // returns plain compressed, or nil if that is not smaller
}

// New reads the files. Each is compressed at its first request: compressing all takes tens of
// milliseconds, which must not delay a node's start.
func New() (*Site, error) {
	contents, err := read()
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	assets := digestOf(contents)
	s := &Site{files: map[string]*file{}}
	for name, body := range contents {
		at, cache := assets+"/"+name, "public, max-age=31536000, immutable"
		if name == indexFile {
			at, cache = "", "no-cache"
			body = bytes.ReplaceAll(body, []byte(assetsMark), []byte(assets))
		}
		s.files[at] = newFile(name, cache, body)
	}
	return s, nil
}

// read returns the files by their path below web.
func read() (map[string][]byte, error) {
	contents := map[string][]byte{}
	err := fs.WalkDir(web, "web", func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := web.ReadFile(at)
		contents[strings.TrimPrefix(at, "web/")] = body
		return err
	})
	return contents, err
}

func digestOf(contents map[string][]byte) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		fmt.Fprintf(sum, "%s %d\n%s", name, len(contents[name]), contents[name])
	}
	return hex.EncodeToString(sum.Sum(nil))[:digestChars]
}

func newFile(name, cache string, body []byte) *file {
	sum := sha256.Sum256(body)
	return &file{
		media: mediaOf(name), cache: cache, tag: hex.EncodeToString(sum[:])[:digestChars], plain: body,
		packed: sync.OnceValue(func() []byte { return pack(body) }),
	}
}

// pack compresses a file; nil if that does not make it smaller.
func pack(body []byte) []byte {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(body)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil { // the level is valid and the writer is memory: cannot happen
		panic(fmt.Sprintf("ui: a file does not compress: %v", err))
	}
	if packed.Len() >= len(body) {
		return nil
	}
	return packed.Bytes()
}

// mediaOf returns the media type of a file. The machine's table is not used, since it may
// have a wrong type for modules.
func mediaOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/plain; charset=utf-8"
}

// Serve answers a request for a file. The parameter at is the file's path below the dashboard's
// path, without a leading slash. The empty path is the page. Serve returns false if there is no
// such file.
func (s *Site) Serve(at, acceptEncoding, ifNoneMatch string) (Answer, bool) {
	f, ok := s.files[at]
	if !ok {
		return Answer{}, false
	}
	body, tag := f.plain, `"`+f.tag+`"`
	packed := false
	if acceptsGzip(acceptEncoding) {
		if small := f.packed(); small != nil {
			packed, body, tag = true, small, `"`+f.tag+`-gzip"`
		}
	}
	a := Answer{Status: 200, Body: body, Header: [][2]string{
		{"Content-Type", f.media},
		{"Cache-Control", f.cache},
		{"ETag", tag},
		{"Vary", "Accept-Encoding"},
		{"Content-Security-Policy", policy},
		{"X-Content-Type-Options", "nosniff"},
		{"Referrer-Policy", "no-referrer"},
		{"Cross-Origin-Opener-Policy", "same-origin"},
		{"Cross-Origin-Resource-Policy", "same-origin"},
	}}
	if matches(ifNoneMatch, tag) {
		a.Status, a.Body = 304, nil
		return a, true
	}
	if packed {
		a.Header = append(a.Header, [2]string{"Content-Encoding", "gzip"})
	}
	return a, true
}

// acceptsGzip parses an Accept-Encoding header: gzip or * with a quality other than 0.
func acceptsGzip(header string) bool {
	all := false
	for part := range strings.SplitSeq(header, ",") {
		coding, params, _ := strings.Cut(part, ";")
		wanted := !zeroQuality(params)
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip":
			return wanted
		case "*":
			all = wanted
		}
	}
	return all
}

func zeroQuality(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.ReplaceAll(p, " ", ""), "=")
		if strings.EqualFold(name, "q") {
			return strings.Trim(value, "0.") == ""
		}
	}
	return false
}

// matches reports whether an If-None-Match header contains tag, by weak comparison.
func matches(header, tag string) bool {
	for part := range strings.SplitSeq(header, ",") {
		if part = strings.TrimSpace(part); part == "*" || strings.TrimPrefix(part, "W/") == tag {
			return true
		}
	}
	return false
}
