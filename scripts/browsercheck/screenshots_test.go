package browsercheck

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	n.demo("-scenario", "rag,chat", "-requests", "8", "-turns", "40")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.open("http://" + n.http + "/ui/")
	p.says("#tiers", "disk")
	// The newest request that was spliced, or else what the page says where there are none.
	p.goTo("#/requests?way=splice")
	p.says("h1", "Requests")
	p.settled()
	spliced := eval[string](p, `document.querySelector('#requests tbody a')?.hash ?? '#/requests'`)
	for _, shot := range []struct {
		name, hash, wait, scheme string
		height                   int64
	}{
		{"overview", "#/", "#tiers", "light", 1120},
		{"overview-dark", "#/", "#tiers", "dark", 1120},
		{"requests", "#/requests", "#requests", "light", 720},
		{"request", spliced, "#story, #requests", "light", 1000},
		{"segments", "#/segments", "#segments tbody tr", "light", 720},
		{"decisions", "#/decisions", "#decisions tbody tr", "light", 720},
		{"disk", "#/disk", "#restart", "light", 900},
	} {
		command(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1240, Height: shot.height, DeviceScaleFactor: 1})
		command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: shot.scheme}}})
		p.goTo(shot.hash)
		p.until(shot.name+" is there", fmt.Sprintf(`document.querySelector(%q)`, shot.wait))
		p.settled()
		eval[chromedp.Void](p, `void (document.activeElement?.blur(), scrollTo(0, 0))`)
		eval[chromedp.Void](p, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))`)
		picture := await(p, func() ([]byte, error) { return chromedp.Run(p.ctx, chromedp.CaptureScreenshot()) })
		picture, err := packed(picture)
		if err != nil {
			t.Fatal(err)
		}
		if len(picture) > maxPicture {
			t.Errorf("%s takes %d bytes", shot.name, len(picture))
		}
		if err := os.WriteFile(filepath.Join(dir, "ui-"+shot.name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// packed is a PNG of 256 colours: those that a picture has most of, and for others the
// nearest of them. A page has few colours and many pixels.
func packed(picture []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	counts := map[color.RGBA]int{}
	bounds := full.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(pixel(a), pixel(b)))
	})
	palette := color.Palette{}
	for _, c := range colours[:min(len(colours), 256)] {
		palette = append(palette, c)
	}
	small := image.NewPaletted(bounds, palette)
	nearest := map[color.RGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)
			index, known := nearest[c]
			if !known {
				index = uint8(palette.Index(c))
				nearest[c] = index
			}
			small.SetColorIndex(x, y, index)
		}
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&out, small); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func pixel(c color.RGBA) uint32 { return uint32(c.R)<<16 | uint32(c.G)<<8 | uint32(c.B) }
