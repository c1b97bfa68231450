package browsercheck

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// pages are all pages, each with what has to be on it.
var pages = []struct{ hash, title, has string }{
	{"#/", "Overview", "Token hit ratio"},
	{"#/requests", "Requests", "chatcmpl-7f31"},
	{"#/requests/12", "Requests", "Along the prompt"},
	{"#/segments", "Segments", "Qwen3-Next-80B-A3B"},
	{"#/segments/" + keyOf("seg3"), "Segments", "What was decided about it"},
	{"#/checkpoints", "Checkpoints", "spliced"},
	{"#/checkpoints/" + keyOf("cp1"), "Checkpoints", "Extends"},
	{"#/tenants", "Tenants", "beta"},
	{"#/decisions", "Decisions", "for room in its pool"},
	{"#/canary", "Canary", "no primer: 14.4 % of 300 requests"},
	{"#/connections", "Connections", "sglang 0.5.8"},
	{"#/disk", "Disk", "14.2 ms"},
	{"#/gpu", "GPU", "3 GiB of 8 GiB"},
	{"#/peers", "Peers", "node-9 is out of reach"},
	{"#/events", "Events", "sglang scheduler attached"},
}

func TestEveryPageRenders(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/"))
	for _, size := range [][2]int64{{1360, 900}, {420, 800}} {
		command(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: size[0], Height: size[1], DeviceScaleFactor: 1})
		for _, page := range pages {
			p.goTo(page.hash)
			p.says("h1", page.title)
			p.settled()
			p.says("main", page.has)
			p.clean()
		}
	}
}

// Each number in a tile, and each heading of a column of numbers, says what it means.
func TestNumbersAreExplained(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/"))
	for _, page := range pages {
		p.goTo(page.hash)
		p.says("h1", page.title)
		p.settled()
		p.says("main", page.has)
		bare := eval[[]string](p, `[...document.querySelectorAll('.stat')].filter((s) => !s.title).map((s) => s.innerText)
			.concat([...document.querySelectorAll('main th.num[scope=col]')].filter((h) => !h.title && !h.closest('.numbers')).map((h) => h.innerText))`)
		for _, b := range bare {
			if !strings.HasPrefix(b, "Since the start") {
				t.Errorf("%s: %q has no title", page.hash, b)
			}
		}
	}
}

func TestEachQuestionIsAnsweredFromTheFirstPage(t *testing.T) {
	d, p := standIn(t), openTab(t)
	// Each question with its first answer, the section that it leads to, and what is found there.
	questions := []struct{ id, answer, section, found string }{
		{"ttft", "last hour, 35.0 % of prompt tokens were computed, most because: evicted (971,100 tokens)", "#why", "971,100 tokens"},
		{"ratio", "54.0 % over all", "#usage", "62.4 %"},
		{"evicted", "search by its key", "#decisions", "for its tenant's quota"},
		{"shared", "97.5 GiB", "#numbers", "97.5 GiB"},
		{"canary", "no: splicing is off for 1 profile", "#canary", "3 of 64"},
		{"disk", "no call hangs, 14.2 ms a read on average", "#disk", "half within 10 ms"},
		{"leases", "5 leases", "#leases", "vllm worker 0"},
		{"hbm", "3 GiB of 8 GiB", "#gpu", "3 GiB of 8 GiB"},
		{"engines", "vllm 0.12.1, sglang 0.5.8", "#engines", "vllm 0.12.1"},
		{"engines", "vllm 0.12.1, sglang 0.5.8", "#connections", "vllm worker 0 vllm 0.12.1"},
		{"restart", "3,120 objects from disk", "#restart", "3,120 objects"},
	}
	p.open(d.url("#/"))
	for _, q := range questions {
		p.goTo("#/")
		p.says(fmt.Sprintf(`[data-question="%s"]`, q.id), q.answer)
		eval[chromedp.Void](p, fmt.Sprintf(`void document.querySelector('[data-question="%s"]').previousElementSibling.click()`, q.id))
		p.says(q.section, q.found)
		p.until(q.section+" is in view", fmt.Sprintf(`(() => { const r = document.querySelector(%q).getBoundingClientRect(); return r.top < innerHeight && r.bottom > 0 })()`, q.section))
	}
}

// Where a key went that is not held any more.
func TestWhyWasThisEvicted(t *testing.T) {
	d, p := standIn(t), openTab(t)
	gone := keyOf("gone0")
	p.networkErrors = true // it is not held: 404
	p.open(d.url("#/decisions?key=" + gone[:10]))
	p.says("#decisions", "for room in its pool")
	if n := eval[int](p, `document.querySelectorAll('#decisions tbody tr').length`); n != 1 {
		t.Errorf("%d decisions of that key, want 1", n)
	}
	eval[chromedp.Void](p, `void document.querySelector('#decisions tbody a.key').click()`)
	p.says("main", "is not held")
	p.says("#history", "for room in its pool")
	p.says("#history", "by learned")
}

func TestStoryIsDrawnAlongThePrompt(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/requests"))
	p.says("#requests", "chatcmpl-7f31")
	eval[chromedp.Void](p, `void [...document.querySelectorAll('#requests tbody a')].find((a) => a.innerText === '#12').click()`)
	p.says("#story", "Along the prompt")
	type part struct {
		Kind, Letter, Title string
		Begin, End          float64
	}
	parts := eval[[]part](p, `(() => {
		const track = document.querySelector('.story .track'), box = track.getBoundingClientRect();
		return [...track.children].map((s) => { const r = s.getBoundingClientRect();
			return { Kind: s.className, Letter: s.innerText.trim(), Title: s.title, Begin: (r.left - box.left) / box.width, End: (r.right - box.left) / box.width } });
	})()`)
	if len(parts) != 10 {
		t.Fatalf("%d parts, want 10", len(parts))
	}
	spans := d.find("requests", "id", "12").(map[string]any)["spans"].([]any)
	const whole = 5120
	for i, s := range spans {
		span, got := s.(map[string]any), parts[i]
		begin, end := number(span["begin"])/whole, number(span["end"])/whole
		if got.Begin < begin-0.005 || got.Begin > begin+0.005 || got.End < end-0.005 || got.End > end+0.005 {
			t.Errorf("part %d is drawn from %.3f to %.3f, want %.3f to %.3f", i, got.Begin, got.End, begin, end)
		}
		if !strings.Contains(got.Kind, span["from"].(string)) {
			t.Errorf("part %d is drawn as %q, and comes from %v", i, got.Kind, span["from"])
		}
	}
	if parts[1].Letter != "P" || parts[3].Letter != "S" || parts[8].Letter != "C" || !strings.Contains(parts[8].Title, "evicted") {
		t.Errorf("letters and titles: %+v", parts)
	}
	// What is told by a colour is told by a pattern, too.
	for _, kind := range []string{"prefix", "segment", "computed"} {
		if image := eval[string](p, fmt.Sprintf(`getComputedStyle(document.querySelector('.story .part.%s')).backgroundImage`, kind)); !strings.Contains(image, "gradient") {
			t.Errorf("%s has no pattern: %q", kind, image)
		}
	}
	p.says("#rest", "evicted")
	p.says("#rest", "512 tokens")
	p.says("#ways", "793 ms")
	p.says("#ways", "taken")
	p.clean()
}

func TestListsSearchAndFilter(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/requests?tenant=beta"))
	p.says("#requests", "chatcmpl-7f2f")
	if strings.Contains(p.text("#requests"), "chatcmpl-7f31") {
		t.Error("a request of another tenant is listed")
	}
	// By hand: a tenant is typed and the form sent.
	eval[chromedp.Void](p, `void (document.querySelector('#requests [name=tenant]').value = 'acme', document.querySelector('#requests form').requestSubmit())`)
	p.says("#requests", "chatcmpl-7f31")
	if hash := eval[string](p, "location.hash"); hash != "#/requests?tenant=acme" {
		t.Errorf("the address of the search is %q", hash)
	}
	key := keyOf("seg2")
	p.goTo("#/segments?key=" + key[:9])
	p.says("#listed", "1 row")
	p.says("#segments tbody", key[:12])
	p.goTo("#/segments?key=" + strings.Repeat("0", 64))
	p.says("#segments tbody", "None is held")
}

// Another time is asked for without losing the page under the reader's hands.
func TestAnotherTimeIsShown(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/"))
	p.says("#time h2", "last hour")
	eval[chromedp.Void](p, `window.panel = document.querySelector('#time'); void [...document.querySelectorAll('#time .range button')].find((b) => b.innerText === 'last 7 days').focus()`)
	p.run(chromedp.KeyEvent("\r"))
	p.says("#time h2", "last 7 days")
	p.says("#why h2", "last 7 days")
	if at := eval[string](p, `document.activeElement.innerText`); at != "last 7 days" || !eval[bool](p, `window.panel === document.querySelector('#time')`) {
		t.Errorf("the page was made anew, the focus is on %q", at)
	}
	p.clean()
}
