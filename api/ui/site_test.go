package ui

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
)

// budget is what a browser may have to load for the dashboard, compressed.
const budget = 150_000 // bytes

func newSite(t *testing.T) *Site {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func header(a Answer, name string) string {
	for _, line := range a.Header {
		if line[0] == name {
			return line[1]
		}
	}
	return ""
}

func unpacked(t *testing.T, body []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func TestVendoredFilesAreThoseOfTheirPackages(t *testing.T) {
	contents, err := read()
	if err != nil {
		t.Fatal(err)
	}
	versions := string(contents["vendor/VERSIONS"])
	sums := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(contents["vendor/SHA256SUMS"])); lines.Scan(); {
		sum, name, _ := strings.Cut(lines.Text(), "  ")
		sums[name] = sum
	}
	code := 0
	for name, body := range contents {
		file, ok := strings.CutPrefix(name, "vendor/")
		if !ok || !strings.HasSuffix(file, ".js") && !strings.HasSuffix(file, ".css") {
			continue
		}
		code++
		if got := fmt.Sprintf("%x", sha256.Sum256(body)); got != sums[file] {
			t.Errorf("%s has the digest %s, SHA256SUMS says %q", file, got, sums[file])
		}
		line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(file) + `\s.*$`).FindString(versions)
		licences := regexp.MustCompile(`[a-z]+\.LICENSE`).FindAllString(line, -1)
		if len(licences) == 0 {
			t.Errorf("VERSIONS names no licence of %s", file)
		}
		for _, l := range licences {
			if len(contents["vendor/"+l]) < 500 {
				t.Errorf("%s: the text of %s is missing", file, l)
			}
		}
	}
	if code != len(sums) || code < 3 {
		t.Errorf("%d files, %d sums", code, len(sums))
	}
}

// The page names its files by relative addresses that are served, and nothing of elsewhere.
func TestPageAndModulesReferToWhatIsServed(t *testing.T) {
	s := newSite(t)
	page, ok := s.Serve("", "", "")
	if !ok {
		t.Fatal("no page")
	}
	names := regexp.MustCompile(`(?:href|src)="([^"]+)"`).FindAllStringSubmatch(string(page.Body), -1)
	if len(names) < 10 {
		t.Fatalf("the page refers to %d files", len(names))
	}
	preloaded := map[string]bool{}
	for _, n := range names {
		if _, ok := s.Serve(n[1], "", ""); !ok {
			t.Errorf("the page refers to %s, which is not served", n[1])
		}
		preloaded[n[1]] = true
	}
	imports := regexp.MustCompile(`(?m)^import .* from '\./([^']+)';$`)
	outside := regexp.MustCompile(`https?://[^\s"'\x60)]+`)
	for at, f := range s.files {
		if strings.Contains(at, "/vendor/") {
			continue
		}
		for _, m := range imports.FindAllStringSubmatch(string(f.plain), -1) {
			name := at[:strings.IndexByte(at, '/')+1] + m[1]
			if !preloaded[name] {
				t.Errorf("%s imports %s, which the page does not load ahead", at, name)
			}
		}
		for _, u := range outside.FindAllString(string(f.plain), -1) {
			if u != "http://www.w3.org/2000/svg" {
				t.Errorf("%s refers to %s", at, u)
			}
		}
	}
}

// What the content policy forbids must not be needed.
func TestNothingIsInline(t *testing.T) {
	page, _ := newSite(t).Serve("", "", "")
	for _, bad := range []string{`<script>`, ` style="`, `<style`, ` onclick`, ` onload`, "javascript:"} {
		if bytes.Contains(page.Body, []byte(bad)) {
			t.Errorf("the page has %s", bad)
		}
	}
	policy := header(page, "Content-Security-Policy")
	for _, part := range []string{"default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "object-src 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy lacks %s: %s", part, policy)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %s", policy)
	}
	contents, err := read()
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range contents {
		for _, bad := range []string{"dangerouslySetInnerHTML", ".innerHTML", "document.write", "eval(", "new Function"} {
			if !strings.HasPrefix(name, "vendor/") && bytes.Contains(body, []byte(bad)) {
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
}

func TestAllOfItIsSmall(t *testing.T) {
	s := newSite(t)
	total := 0
	for at := range s.files {
		if strings.Contains(at, ".LICENSE") || strings.HasSuffix(at, "SUMS") || strings.HasSuffix(at, "VERSIONS") {
			continue // no page loads them
		}
		a, _ := s.Serve(at, "gzip", "")
		total += len(a.Body)
	}
	if total > budget {
		t.Errorf("%d bytes compressed, more than %d", total, budget)
	}
	t.Logf("%d bytes compressed", total)
}

func TestAnswersAreTheFilesInEitherForm(t *testing.T) {
	s := newSite(t)
	for at := range s.files {
		plain, ok := s.Serve(at, "identity, gzip;q=0", "")
		packed, ok2 := s.Serve(at, "br, gzip;q=0.8", "")
		if !ok || !ok2 || plain.Status != 200 || packed.Status != 200 {
			t.Fatalf("%q: %d %d", at, plain.Status, packed.Status)
		}
		if header(plain, "Content-Encoding") != "" {
			t.Errorf("%q is coded for who does not want it", at)
		}
		if header(packed, "Content-Encoding") != "gzip" {
			continue // it would not be smaller
		}
		if !bytes.Equal(unpacked(t, packed.Body), plain.Body) {
			t.Errorf("%q: the two forms differ", at)
		}
		if header(plain, "ETag") == header(packed, "ETag") {
			t.Errorf("%q: both forms have one tag", at)
		}
		for _, a := range []Answer{plain, packed} {
			for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Vary": "Accept-Encoding"} {
				if header(a, name) != want {
					t.Errorf("%q: %s is %q", at, name, header(a, name))
				}
			}
		}
	}
}

func TestAcceptEncodingIsRead(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "deflate, gzip": true, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.001": true,
		"*": true, "*;q=0": false, "*, gzip;q=0": false, "gzip;q=1, *;q=0": true, "identity": false, "xgzip": false,
	} {
		if got := acceptsGzip(header); got != want {
			t.Errorf("%q: %v", header, got)
		}
	}
}

func TestWhatIsKeptIsNotSentAgain(t *testing.T) {
	s := newSite(t)
	for _, at := range slices.Sorted(maps.Keys(s.files)) {
		first, _ := s.Serve(at, "gzip", "")
		tag := header(first, "ETag")
		for _, kept := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
			again, ok := s.Serve(at, "gzip", kept)
			if !ok || again.Status != 304 || len(again.Body) != 0 || header(again, "ETag") != tag || header(again, "Content-Encoding") != "" {
				t.Errorf("%q with %s: %d, %d bytes", at, kept, again.Status, len(again.Body))
			}
		}
		if again, _ := s.Serve(at, "gzip", `"other"`); again.Status != 200 {
			t.Errorf("%q with another tag: %d", at, again.Status)
		}
		cache := header(first, "Cache-Control")
		if want := "no-cache"; at == "" && cache != want {
			t.Errorf("the page is kept for good: %q", cache)
		}
		if at != "" && !strings.Contains(cache, "immutable") {
			t.Errorf("%q is asked for each time: %q", at, cache)
		}
	}
}

func TestOtherPathsAreNotServed(t *testing.T) {
	s := newSite(t)
	for _, at := range []string{"index.html", "web/index.html", "../site.go", "app.js", "0123456789abcdef/app.js", "/", "vendor/preact.js"} {
		if _, ok := s.Serve(at, "", ""); ok {
			t.Errorf("%q is served", at)
		}
	}
}

// What a linter would say of modules: names that are imported are there, and used.
func TestImportsAreThereAndUsed(t *testing.T) {
	contents, err := read()
	if err != nil {
		t.Fatal(err)
	}
	imports := regexp.MustCompile(`(?m)^import \{([^}]*)\} from '\./([^']+)';$`)
	word := func(name string) *regexp.Regexp { return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`) }
	checked := 0
	for name, body := range contents {
		for _, m := range imports.FindAllSubmatch(body, -1) {
			for one := range strings.SplitSeq(string(m[1]), ",") {
				one, checked = strings.TrimSpace(one), checked+1
				if len(word(one).FindAllIndex(body, 2)) < 2 {
					t.Errorf("%s imports %s and does not use it", name, one)
				}
				exported := regexp.MustCompile(`export (async )?(function|const|class) ` + one + `\b`)
				if from := string(m[2]); !strings.HasPrefix(from, "vendor/") && !exported.Match(contents[from]) {
					t.Errorf("%s imports %s, which %s does not export", name, one, from)
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d imports were found", checked)
	}
}
