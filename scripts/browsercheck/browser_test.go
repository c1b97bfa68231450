package browsercheck

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds every wait; it is long because the machine may be busy.
const patience = 2 * time.Minute

// browser is one chromium for all tests, or why there is none.
var browser = sync.OnceValues(func() (context.Context, error) {
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		return nil, fmt.Errorf("no chromium in PATH; on Debian: apt-get install --no-install-recommends chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1360, 900),
		chromedp.WSURLReadTimeout(patience), chromedp.Flag("disable-quic", true), chromedp.Flag("force-color-profile", "srgb"))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	closeBrowser = func() { cancel(); stop() }
	return ctx, chromedp.Do(ctx)
})

var closeBrowser = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	closeBrowser()
	os.Exit(code)
}

// tab is one page in a profile of its own, and what went wrong in it.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu struct {
		sync.Mutex
		wrong []string // exceptions, console errors, violations of the content policy
		wire  map[network.RequestID]string
		bytes map[string]float64 // over the wire, by URL
	}
	// networkErrors are expected: a console says that an answer was no 200.
	networkErrors bool
}

// violations are noted by the page itself, from before its first line.
const watch = `addEventListener('securitypolicyviolation', (e) => console.error('content policy: ' + e.violatedDirective + ' ' + e.blockedURI));
addEventListener('unhandledrejection', (e) => console.error('unhandled: ' + e.reason));`

func openTab(t *testing.T) *tab {
	t.Helper()
	b, err := browser()
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := chromedp.NewContext(b, chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: ctx}
	p.mu.wire, p.mu.bytes = map[network.RequestID]string{}, map[string]float64{}
	if err := chromedp.Listen(ctx, p.heard); err != nil {
		t.Fatal(err)
	}
	command(p, network.Enable, network.EnableParams{})
	command(p, log.Enable, cdp.Empty{})
	command(p, cdpage.AddScriptToEvaluateOnNewDocument, cdpage.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
	t.Cleanup(func() {
		for _, w := range p.wrongs() {
			t.Errorf("in the page: %s", w)
		}
		cancel()
	})
	return p
}

func (p *tab) heard(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.mu.wrong = append(p.mu.wrong, fmt.Sprintf("exception: %s %s", e.ExceptionDetails.Text, told(e.ExceptionDetails.Exception)))
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			p.mu.wrong = append(p.mu.wrong, "console: "+told(e.Args...))
		}
	case *log.EventEntryAdded:
		if e.Entry.Source == log.EntrySourceNetwork && p.networkErrors {
			return
		}
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			p.mu.wrong = append(p.mu.wrong, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		p.mu.wire[e.RequestID] = e.Request.URL
	case *network.EventLoadingFinished:
		p.mu.bytes[p.mu.wire[e.RequestID]] += e.EncodedDataLength
	}
}

// told is what a console would show of some values.
func told(values ...*runtime.RemoteObject) string {
	text := ""
	for _, v := range values {
		if v != nil {
			text += fmt.Sprintf(" %s%s", v.Value, v.Description)
		}
	}
	return text
}

func (p *tab) wrongs() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.mu.wrong...)
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	await(p, func() (chromedp.Void, error) { return chromedp.Void{}, chromedp.Do(p.ctx, actions...) })
}

// command runs one command of the browser's protocol.
func command[P, R any](p *tab, cmd cdp.Command[P, R], params P) R {
	p.t.Helper()
	return await(p, func() (R, error) { return chromedp.Call(p.ctx, cmd, params) })
}

// await bounds what the browser may take. A context with a deadline would not do: it ends
// the tab.
func await[T any](p *tab, work func() (T, error)) T {
	p.t.Helper()
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := work()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			p.t.Fatal(r.err)
		}
		return r.value
	case <-time.After(2 * patience):
		p.t.Fatal("the browser does not answer")
		panic("unreachable")
	}
}

func (p *tab) open(url string) {
	p.t.Helper()
	p.run(chromedp.Navigate(url))
}

// eval runs an expression in the page. The page's content policy does not bind it.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	return await(p, func() (T, error) {
		value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
		if err != nil {
			err = fmt.Errorf("%.300s: %w", expression, err)
		}
		return value, err
	})
}

// until waits for an expression to be true.
func (p *tab) until(what, expression string) {
	p.t.Helper()
	limit := time.Now().Add(patience)
	for !eval[bool](p, "Boolean("+expression+")") {
		if time.Now().After(limit) {
			p.t.Fatalf("not within %v: %s; the page says:\n%s", patience, what, p.text("body"))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// text is what a reader sees of an element.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ''`, selector))
}

// says waits until an element shows a text.
func (p *tab) says(selector, text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%s says %q", selector, text), fmt.Sprintf(`(document.querySelector(%q)?.innerText ?? '').includes(%q)`, selector, text))
}

// goTo turns to another page of the dashboard without loading it anew.
func (p *tab) goTo(hash string) {
	p.t.Helper()
	eval[chromedp.Void](p, fmt.Sprintf(`void (location.hash = %q)`, hash))
}

// settled waits until the page waits for nothing.
func (p *tab) settled() {
	p.t.Helper()
	p.until("the page has loaded", `document.querySelector('main .panel') && !document.querySelector('[aria-busy]')`)
}

// clean fails where a page shows what only a program could have written.
func (p *tab) clean() {
	p.t.Helper()
	body := p.text("body")
	for _, bad := range []string{"NaN", "undefined", "null", "[object", "Invalid Date", "Infinity"} {
		if strings.Contains(body, bad) {
			p.t.Errorf("%s: the page says %s:\n%s", eval[string](p, "location.hash"), bad, body)
		}
	}
	if wide := eval[float64](p, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		p.t.Errorf("%s: the page is %v pixels wider than its window", eval[string](p, "location.hash"), wide)
	}
}
