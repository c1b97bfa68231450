package hostile

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
)

// hangingLibrary is one whose initialisation does not end.
func hangingLibrary(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	source, library := filepath.Join(dir, "hang.c"), filepath.Join(dir, "libcuda.so.1")
	const text = "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Skip("SKIP: no C compiler for a library that hangs")
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return library
}

// A daemon that waits for a driver ends when it is told to, and not when the driver is
// given up.
func TestHostileDriverThatHangsDoesNotKeepADaemon(t *testing.T) {
	t.Parallel()                                                                                        // it waits
	v := launch(t, bounds{}, "-hbm-public=64MiB", "-hbm-library="+hangingLibrary(t), "-hbm-timeout=1m") // given up after 30 minutes
	eventually(t, "it waits for the GPU", func() bool {
		v.mustRun()
		h := v.health()
		return len(h.Checks) == 1 && strings.Contains(h.Checks[0].Detail, "opening the GPU")
	})
	begun := time.Now()
	v.stop()
	if v.err != nil {
		t.Errorf("%v\n%s", v.err, v.log)
	}
	report(t, "a driver whose opening blocks, and SIGTERM", fmt.Sprintf("an end %v after that", time.Since(begun).Round(time.Millisecond)), "nothing")
}

// A driver that hangs while it is opened does not make the node look dead: the probes
// are answered from the start on, and say what is waited for.
func TestHostileDriverThatHangsIsNotSilence(t *testing.T) {
	t.Parallel() // it waits
	library := hangingLibrary(t)
	begun := time.Now()
	v := launch(t, bounds{}, "-hbm-public=64MiB", "-hbm-library="+library, "-hbm-timeout=500ms") // given up after 15 s
	var alive time.Duration
	eventually(t, "/livez answers, and readiness says what is waited for", func() bool {
		v.mustRun()
		status, _ := v.get("/livez")
		if status == http.StatusOK && alive == 0 {
			alive = time.Since(begun)
		}
		h := v.health()
		return alive > 0 && h.Status == api.HealthUnavailable && len(h.Checks) == 1 && h.Checks[0].Name == "start" && strings.Contains(h.Checks[0].Detail, "opening the GPU")
	})
	if status, body := v.get("/api/v1/segments"); status != http.StatusServiceUnavailable || !strings.Contains(body, "still opening") {
		t.Errorf("segments: %d %s", status, body)
	}
	eventually(t, "it serves without the GPU", func() bool {
		v.mustRun()
		return v.health().Status == api.HealthDegraded
	})
	report(t, "a driver whose opening blocks", fmt.Sprintf("/livez after %v, and a start without the GPU after %v", alive.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond)), "no answer from the cache until then")
}
