package hostile

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
)

// member returns what a node lists of another one; its state is empty where it lists none.
func (v *victim) member(name string) (m api.Member) {
	_, body := v.get("/api/v1/cluster")
	var c api.Cluster
	if json.Unmarshal([]byte(body), &c) != nil {
		return m
	}
	for i := range c.Members {
		if c.Members[i].Name == name {
			m = c.Members[i]
		}
	}
	return m
}

// A node with another key is no member, and the members count its address and say why.
func TestHostileNodeWithAnotherKeyIsCounted(t *testing.T) {
	flags := clusterFlags(t, "a", "b")
	a := start(t, bounds{}, flags[0]...)
	if n := a.series("spliced_cluster_unusable"); n != 0 {
		t.Errorf("%v are unusable before anybody came", n)
	}
	other := filepath.Join(t.TempDir(), "keyring")
	if err := os.WriteFile(other, []byte(base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 32)))), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, bounds{}, append(flags[1], "-cluster-keyring="+other)...)
	eventually(t, "a counts it as unusable", func() bool { return a.series("spliced_cluster_unusable") == 1 })
	if _, body := a.get("/api/v1/cluster"); !strings.Contains(body, "its key is not in this node's keyring") || a.member("b").State != "" {
		t.Errorf("a lists %s", body)
	}
	report(t, "a node with another key joins", "no place among the members", "its address and the reason at the members that it tried")
}

// A node that was killed has failed, and one that was stopped has left; both stay listed.
func TestHostileKilledNodeIsListedAsFailed(t *testing.T) {
	flags := clusterFlags(t, "a", "b", "c")
	a, b, c := start(t, bounds{}, flags[0]...), start(t, bounds{}, flags[1]...), start(t, bounds{}, flags[2]...)
	eventually(t, "they see each other", func() bool { return a.series(`spliced_cluster_members{state="alive"}`) == 2 })
	c.stop()
	b.kill()
	eventually(t, "a knows how they ended", func() bool {
		return a.member("b").State == "failed" && a.member("c").State == "left"
	})
	for _, name := range []string{"b", "c"} {
		if m := a.member(name); m.Seen == nil || m.Seen.IsZero() {
			t.Errorf("%s was last seen %v", name, m.Seen)
		}
	}
	report(t, "kill -9 of one node, SIGTERM of another", "nothing", "one that failed and one that left, and when they were last seen")
}
