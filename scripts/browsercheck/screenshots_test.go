package browsercheck

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// maxPicture is what a picture in docs may take.
const maxPicture = 120_000 // bytes

// Pictures of a daemon that has served the demo, into the directory that
// SPLICED_SCREENSHOTS names.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("SPLICED_SCREENSHOTS")
	if dir == "" {
		t.Skip("SPLICED_SCREENSHOTS names no directory; make screenshots does")
	}
	p := openTab(t)
	p.networkErrors = true
	n := startNode(t)
	n.demo("-scenario", "rag,chat")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.open("http://" + n.http + "/ui/")
	p.says("#tiers", "disk")
	newest := `document.querySelector('#requests tbody a')?.hash ?? '#/requests'`
	for _, shot := range []struct {
		name, hash, wait, scheme string
		height                   int64
	}{
		{"overview", "#/", "#tiers", "light", 1120},
		{"overview-dark", "#/", "#tiers", "dark", 1120},
		{"requests", "#/requests", "#requests", "light", 720},
		{"request", newest, "#story, #requests", "light", 1000},
		{"segments", "#/segments", "#segments tbody tr", "light", 720},
		{"decisions", "#/decisions", "#decisions tbody tr", "light", 720},
		{"disk", "#/disk", "#restart", "light", 900},
	} {
		command(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1240, Height: shot.height, DeviceScaleFactor: 1})
		command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: shot.scheme}}})
		if shot.hash == newest {
			eval[chromedp.Void](p, `void (location.hash = `+newest+`)`)
		} else {
			p.goTo(shot.hash)
		}
		p.until(shot.name+" is there", fmt.Sprintf(`document.querySelector(%q)`, shot.wait))
		p.settled()
		eval[chromedp.Void](p, `void (document.activeElement?.blur(), scrollTo(0, 0))`)
		eval[chromedp.Void](p, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))`)
		picture := await(p, func() ([]byte, error) { return chromedp.Run(p.ctx, chromedp.CaptureScreenshot()) })
		if len(picture) > maxPicture {
			t.Errorf("%s takes %d bytes", shot.name, len(picture))
		}
		if err := os.WriteFile(filepath.Join(dir, "ui-"+shot.name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
