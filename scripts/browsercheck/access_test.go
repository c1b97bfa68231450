package browsercheck

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

func (p *tab) press(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		p.run(chromedp.KeyEvent(k))
	}
}

const focused = `(() => { const e = document.activeElement; return e === document.body ? '' : (e.innerText || e.getAttribute('aria-label') || e.name || e.tagName).trim().split('\n')[0] })()`

func TestKeyboardReachesAndWorksEverything(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/tenants"))
	p.says("#usage", "beta")
	p.press("\t")
	if at := eval[string](p, focused); at != "Skip to the content" {
		t.Fatalf("the first stop is %q", at)
	}
	if top := eval[float64](p, `document.activeElement.getBoundingClientRect().top`); top < 0 {
		t.Error("the skip link has the focus and is not to be seen")
	}
	p.press("\r")
	p.until("the heading has the focus", `document.activeElement.tagName === 'H1'`)
	if hash := eval[string](p, "location.hash"); hash != "#/tenants" {
		t.Errorf("skipping went to %s", hash)
	}
	// From there on all that can be worked is reached, in the order of the page, and shows it.
	reached, wanted := []string{}, eval[int](p, `[...document.querySelectorAll('main button, main a[href], main input, main select, main summary, main [tabindex="0"]')].filter((e) => !e.disabled && e.getClientRects().length).length`)
	for range wanted {
		p.press("\t")
		reached = append(reached, eval[string](p, focused))
		if !eval[bool](p, `(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1 })()`) {
			t.Errorf("%q has the focus and does not show it", reached[len(reached)-1])
		}
		if !eval[bool](p, `Boolean(document.activeElement.closest('main'))`) {
			t.Errorf("the focus left the content after %d of %d stops: %q", len(reached), wanted, reached)
			break
		}
	}
	// A table is sorted by a key, and says so.
	eval[chromedp.Void](p, `void [...document.querySelectorAll('#usage th button')].find((b) => b.innerText.startsWith('Token hit ratio')).focus()`)
	sorted := `document.activeElement.closest('th').getAttribute('aria-sort')`
	p.press("\r")
	p.until("it is sorted downwards", sorted+` === 'descending'`)
	if row := eval[string](p, `document.querySelector('#usage tbody tr').innerText`); !strings.Contains(row, "62.4 %") {
		t.Errorf("the first row is %q", row)
	}
	p.press(" ")
	p.until("it is sorted upwards", sorted+` === 'ascending'`)
	if row := eval[string](p, `document.querySelector('#usage tbody tr').innerText`); !strings.Contains(row, "10.0 %") {
		t.Errorf("the first row is %q", row)
	}
	// Another page: its heading gets the focus, so that it is read.
	eval[chromedp.Void](p, `void [...document.querySelectorAll('nav a')].find((a) => a.innerText === 'Disk').focus()`)
	p.press("\r")
	p.says("#disk", "14.2 ms")
	p.until("the heading has the focus", `document.activeElement.tagName === 'H1' && document.activeElement.innerText === 'Disk'`)
	if title := eval[string](p, "document.title"); title != "Disk · node-7 · spliced" {
		t.Errorf("the title is %q", title)
	}
	if current := eval[string](p, `document.querySelector('nav [aria-current=page]').innerText`); current != "Disk" {
		t.Errorf("the current page is %q", current)
	}
}

func TestLandmarksAndHeadersAreThere(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/"))
	for _, page := range pages {
		p.goTo(page.hash)
		p.says("h1", page.title)
		p.settled()
		bad := eval[[]string](p, `(() => {
			const bad = [];
			for (const one of ['main', 'nav', 'header.head', 'h1']) if (document.querySelectorAll(one).length !== 1) bad.push(document.querySelectorAll(one).length + ' of ' + one);
			for (const t of document.querySelectorAll('table')) {
				if (!t.caption) bad.push('a table without a caption');
				if (t.querySelector('thead th:not([scope=col])')) bad.push('a heading without a scope');
				for (const r of t.querySelectorAll('tbody tr:not(.gap)')) if (!r.querySelector('th[scope=row], .empty')) bad.push('a row without a heading');
			}
			for (const c of document.querySelectorAll('.bar, .meter, .plot, .story')) if (!c.getAttribute('aria-label')) bad.push('a drawing without words');
			if (!document.querySelector('[role=alert]') || !document.querySelector('[role=status]')) bad.push('nothing is said when the daemon dies or comes back');
			return [...new Set(bad)];
		})()`)
		for _, b := range bad {
			t.Errorf("%s: %s", page.hash, b)
		}
	}
}

func TestThemeFollowsTheSystemAndTheSwitch(t *testing.T) {
	d, p := standIn(t), openTab(t)
	background := func() string { return eval[string](p, `getComputedStyle(document.body).backgroundColor`) }
	system := func(scheme string) {
		command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	}
	system("light")
	p.open(d.url("#/"))
	p.says("#numbers", "97.5 GiB")
	light := background()
	system("dark")
	p.until("it is dark", fmt.Sprintf("getComputedStyle(document.body).backgroundColor !== %q", light))
	dark := background()
	eval[chromedp.Void](p, `void document.querySelector('#theme').click()`)
	p.says("#theme", "Theme: light")
	if got := background(); got != light {
		t.Errorf("light by the switch is %s, by the system %s", got, light)
	}
	p.run(chromedp.Reload())
	p.says("#theme", "Theme: light")
	system("light")
	eval[chromedp.Void](p, `void document.querySelector('#theme').click()`)
	p.says("#theme", "Theme: dark")
	if got := background(); got != dark {
		t.Errorf("dark by the switch is %s, by the system %s", got, dark)
	}
}

// By the rules of axe-core, in light and in dark.
func TestAxeFindsNothing(t *testing.T) {
	found, _ := filepath.Glob("../../bin/tools/axe-*.min.js")
	if len(found) == 0 {
		t.Skip("axe-core is not there: make axe fetches it")
	}
	axe, err := os.ReadFile(found[len(found)-1])
	if err != nil {
		t.Fatal(err)
	}
	d, p := standIn(t), openTab(t)
	// The tool makes markup out of strings; what it looks at stays as it is.
	command(p, cdpage.SetBypassCSP, cdpage.SetBypassCSPParams{Enabled: true})
	for _, scheme := range []string{"light", "dark"} {
		command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
		p.open("about:blank")
		p.open(d.url("#/"))
		p.says("#numbers", "97.5 GiB")
		eval[chromedp.Void](p, string(axe)+"; void 0")
		for _, page := range pages {
			p.goTo(page.hash)
			p.says("h1", page.title)
			p.settled()
			p.says("main", page.has)
			wrong := eval[[]string](p, `axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }).then((r) =>
				r.violations.flatMap((v) => v.nodes.slice(0, 3).map((n) => v.id + ': ' + v.help + ': ' + n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? ''))))`)
			for _, w := range wrong {
				t.Errorf("%s %s: %s", scheme, page.hash, w)
			}
		}
	}
}
