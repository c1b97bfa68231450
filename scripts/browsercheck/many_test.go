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
	// How long the page stands still for a sort of all: the best of some tries, since the machine may be busy.
	best := eval[float64](p, `(async () => {
		const button = [...document.querySelectorAll('#segments th button')].find((b) => b.innerText.startsWith('Hits'));
		let best = Infinity;
		for (let i = 0; i < 5; i++) {
			const before = performance.now();
			button.click();
			await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
			best = Math.min(best, performance.now() - before);
		}
		return best;
	})()`)
	t.Logf("sorting 100,000 rows takes %.0f ms", best)
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
	d := standIn(t)
	best, bytes := 1e9, 0.0
	for range 3 {
		p := openTab(t)
		p.open(d.url("#/"))
		p.says("#numbers", "97.5 GiB")
		ms := eval[float64](p, `performance.getEntriesByType('navigation')[0].loadEventEnd`) // all modules have run
		best = min(best, ms)
		p.mu.Lock()
		bytes = 0
		for url, n := range p.mu.bytes {
			if !strings.HasPrefix(url, "http://"+d.addr+"/") {
				t.Errorf("the page loads %s", url)
			}
			bytes += n // what the first page asks of the REST included
		}
		p.mu.Unlock()
	}
	t.Logf("loaded after %.0f ms at best, %.0f bytes over the wire with its first data", best, bytes)
	if bytes > 150_000+100_000 { // files, and what the first page asks of the REST, which is not compressed
		t.Errorf("%.0f bytes over the wire", bytes)
	}
}
