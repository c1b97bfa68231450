package doctor

import (
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
)

func TestAnObjectStoreIsTried(t *testing.T) {
	for name, r := range map[string]struct {
		change func(p *api.ObjectProbe)
		want   []string // in the checks, one each; those with a remedy are not ok
		remedy string
	}{
		"well":      {func(*api.ObjectProbe) {}, []string{"kv in https://s3.example.com: list 10 ms, write 20 ms"}, ""},
		"denied":    {func(p *api.ObjectProbe) { p.Steps[1].Error = "AccessDenied (403)" }, []string{"write fails: AccessDenied"}, "s3:PutObject"},
		"old clock": {func(p *api.ObjectProbe) { p.ClockAhead = -700 }, []string{"list 10 ms", "-700 s ahead"}, "NTP"},
	} {
		p := &api.ObjectProbe{
			Enabled: true, Endpoint: "https://s3.example.com", Bucket: "kv",
			Steps: []api.ProbeStep{{Name: "list", Seconds: 0.01}, {Name: "write", Seconds: 0.02}},
		}
		r.change(p)
		got := storeOf(p)
		if len(got) != len(r.want) {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		for i, c := range got {
			if !strings.Contains(c.Detail, r.want[i]) || (c.State == OK) != (c.Remedy == "") {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if last := got[len(got)-1]; !strings.Contains(last.Remedy, r.remedy) || (r.remedy == "") != (last.State == OK) {
			t.Errorf("%s: %+v", name, last)
		}
	}
	for _, step := range []string{"list", "write", "overwrite", "read", "range", "delete"} {
		if storeRemedies[step] == "" {
			t.Errorf("no remedy for %s", step)
		}
	}
	if got := storeOf(&api.ObjectProbe{}); got != nil {
		t.Errorf("without a store: %+v", got)
	}
}
