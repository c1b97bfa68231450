package browsercheck

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

func TestFewOfAHundredThousandSegmentsAreDrawn(t *testing.T) {
	d, p := standIn(t), openTab(t)
	d.set(func() { d.mu.segments = 100_000 })
	p.open(d.url("#/segments"))
	p.says("#listed", "100 rows on page 1")
	press := func(name string) {
		eval[chromedp.Void](p, `void [...document.querySelectorAll('.pager button')].find((b) => b.innerText === '`+name+`').click()`)
	}
	// A page at a time, there and back.
	press("Next")
	p.says("#listed", "page 2")
	p.says("#segments tbody", segmentKey(100)[:12])
	press("Previous")
	p.says("#listed", "page 1")
	p.says("#segments tbody", segmentKey(0)[:12])
	// All of them: few rows are drawn, whatever is in view.
	press("Load all that match")
	p.says("#listed", "All 100,000 loaded")
	rows := `document.querySelectorAll('#segments tbody tr:not(.gap)').length`
	if n := eval[int](p, rows); n > 120 {
		t.Errorf("%d rows are drawn", n)
	}
	if n := eval[string](p, `document.querySelector('#segments table').getAttribute('aria-rowcount')`); n != "100001" {
		t.Errorf("%s rows are told", n)
	}
	scroll := `document.querySelector('#segments .scroll').scrollTop = `
	eval[chromedp.Void](p, `void (`+scroll+`1e9)`)
	p.says("#segments tbody", segmentKey(99_999)[:12])
	eval[chromedp.Void](p, `void (`+scroll+`29 * 50000)`)
	p.says("#segments tbody", segmentKey(50_000)[:12])
	eval[chromedp.Void](p, `void [...document.querySelectorAll('#segments th button')].find((b) => b.innerText.startsWith('Hits')).click()`)
	eval[chromedp.Void](p, `void (`+scroll+`0)`)
	p.until("those with the most hits are first", `document.querySelector('#segments tbody tr:not(.gap)').innerText.includes('1,008 hits')`)
	// A search by key finds one of them.
	p.goTo("#/segments?key=" + segmentKey(77_777)[:14])
	p.says("#listed", "1 row on page 1")
	p.clean()
}

// Loading can be stopped, and says how far it came.
func TestLoadingAllCanBeStopped(t *testing.T) {
	d, p := standIn(t), openTab(t)
	d.set(func() { d.mu.segments = 100_000 })
	p.open(d.url("#/segments"))
	p.says("#listed", "100 rows on page 1")
	eval[chromedp.Void](p, `void [...document.querySelectorAll('.pager button')].find((b) => b.innerText === 'Load all that match').click()`)
	p.until("it can be stopped", `[...document.querySelectorAll('.pager button')].some((b) => b.innerText === 'Stop' && (b.click(), true))`)
	p.says("#listed", "100 rows on page 1")
	before := d.asked("segments")
	p.goTo("#/canary")
	p.says("#canary", "Is it fine?")
	if n := d.asked("segments"); n > before+1 {
		t.Errorf("%d more pages were asked for after it was stopped", n-before)
	}
}

func TestFirstLoadIsSmallAndFromOnePlace(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/"))
	p.says("#numbers", "97.5 GiB")
	bytes := 0.0
	p.mu.Lock()
	defer p.mu.Unlock()
	for url, n := range p.mu.bytes {
		if !strings.HasPrefix(url, "http://"+d.addr+"/") {
			t.Errorf("the page loads %s", url)
		}
		bytes += n // what the first page asks of the REST included
	}
	t.Logf("%.0f bytes over the wire with its first data", bytes)
	if bytes > 150_000+100_000 { // files, and what the first page asks of the REST, which is not compressed
		t.Errorf("%.0f bytes over the wire", bytes)
	}
}
