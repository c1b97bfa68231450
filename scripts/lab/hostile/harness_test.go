// Package hostile attacks a real daemon: each test starts the program as a process of
// its own, in bounds that the attack needs (rlimits, a memory or pids cgroup, another
// user), does what a hostile or broken neighbour would, and prints one line with what
// was tried, what the attacker got and what others felt. One file is one attack. It
// has tests only.
//
// SPLICED_HOSTILE_BINARY names a daemon to attack in place of that of this tree.
package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/loopback"
	"github.com/spliced-kv/spliced/connector"
)

// patience bounds every wait; it is long because the machine may be busy.
const patience = 30 * time.Second

// bars also holds what others felt against its bounds, on a machine that does nothing else.
var bars = flag.Bool("bars", false, "fail where others waited for too long; for a machine that does nothing else")

// roleEnv makes the test binary a process of an attack; its value is a name in roles,
// and roleBounds a JSON bounds to take on first.
const (
	roleEnv   = "SPLICED_HOSTILE_ROLE"
	boundsEnv = "SPLICED_HOSTILE_BOUNDS"
)

// roles are what processes of attacks do, by name: each file adds its own in a
// variable's initialiser with role. What one prints on standard output is what
// output returns; it fails by a status other than 0.
var roles = map[string]func(args []string) error{"exec": become}

// role adds a role and returns its name.
func role(name string, run func(args []string) error) string {
	roles[name] = run
	return name
}

func TestMain(m *testing.M) {
	if name := os.Getenv(roleEnv); name != "" {
		err := takeOn(os.Getenv(boundsEnv))
		if err == nil {
			err = roles[name](os.Args[1:])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

// binDir holds the daemon that the tests start; any user may execute it.
var binDir string

func run(m *testing.M) int {
	var err error
	if binDir, err = os.MkdirTemp("", "hostile"); err == nil {
		err = os.Chmod(binDir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	return m.Run()
}

// binary builds the daemon once.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("SPLICED_HOSTILE_BINARY"); path != "" {
		return path, nil
	}
	path := filepath.Join(binDir, "spliced")
	command := exec.Command("go", "build", "-o", path, "./daemon/cmd/spliced")
	command.Dir, command.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if text, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build spliced: %w: %s", err, text)
	}
	return path, nil
})

// bounds are what a process is started under. The zero value is none.
type bounds struct {
	UID, GID int            // 0 = as the test
	Groups   []int          // supplementary, with UID
	Limits   map[int]uint64 // by RLIMIT_ number, soft and hard
	Cgroups  []string       // directories to join
	Denied   []uint32       // system calls that answer EPERM
}

// takeOn is called in the process itself, before it does anything else.
func takeOn(text string) error {
	var b bounds
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return err
	}
	for _, dir := range b.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	for which, n := range b.Limits {
		if err := syscall.Setrlimit(which, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("rlimit %d: %w", which, err)
		}
	}
	if err := deny(b.Denied); err != nil {
		return err
	}
	if b.UID == 0 && b.GID == 0 {
		return nil
	}
	if err := syscall.Setgroups(b.Groups); err != nil {
		return err
	}
	if err := syscall.Setgid(b.GID); err != nil {
		return err
	}
	return syscall.Setuid(b.UID)
}

// deny has system calls of this thread, and of what it executes, answer EPERM.
func deny(calls []uint32) error {
	if len(calls) == 0 {
		return nil
	}
	runtime.LockOSThread()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for _, number := range calls {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// become executes the program that args name in place of this one.
func become(args []string) error {
	for _, name := range []string{roleEnv, boundsEnv} {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return syscall.Exec(args[0], args, os.Environ())
}

// as is a process of an attack, not started yet.
func as(t testing.TB, role string, b bounds, args ...string) *exec.Cmd {
	t.Helper()
	if (b.UID != 0 || b.GID != 0) && os.Geteuid() != 0 {
		t.Skip("SKIP: only root can act as another user")
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, "/proc/self/exe", args...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SPLICED_") {
			command.Env = append(command.Env, e)
		}
	}
	command.Env = append(command.Env, roleEnv+"="+role, boundsEnv+"="+string(text))
	return command
}

// output runs a process of an attack to its end and returns what it printed.
func output(t testing.TB, role string, b bounds, args ...string) string {
	t.Helper()
	command := as(t, role, b, args...)
	var failed bytes.Buffer
	command.Stderr = &failed
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", role, err, &failed)
	}
	return string(out)
}

// shortDir is a directory whose sockets' paths fit sun_path, and that others may enter.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hst")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// cgroup makes one with a limit and returns its directory; it skips where there is no
// such controller. limits are by file of version 2: memory.max, pids.max.
func cgroup(t testing.TB, limit string, value int64) string {
	t.Helper()
	controller, _, _ := strings.Cut(limit, ".")
	name := fmt.Sprintf("hostile-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, place := range []struct{ dir, file string }{
		{"/sys/fs/cgroup", limit},
		{"/sys/fs/cgroup/" + controller, map[string]string{"memory.max": "memory.limit_in_bytes", "pids.max": "pids.max"}[limit]},
	} {
		dir := filepath.Join(place.dir, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		file := filepath.Join(dir, place.file)
		if _, err := os.Stat(file); err != nil || os.WriteFile(file, []byte(strconv.FormatInt(value, 10)), 0) != nil { // no cgroup, or another controller's
			os.Remove(dir)
			continue
		}
		t.Cleanup(func() {
			eventually(t, "the cgroup is empty", func() bool { err := os.Remove(dir); return err == nil || errors.Is(err, fs.ErrNotExist) })
		})
		return dir
	}
	t.Skipf("SKIP: no cgroup with %s can be made here", limit)
	return ""
}

// eventually polls until ok, or fails with what.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// victim is a daemon under attack.
type victim struct {
	t       testing.TB
	Dir     string // of its socket
	Socket  string
	HTTP    string // host:port of the admin REST
	secure  bool   // which speaks TLS
	command *exec.Cmd
	log     *lockedBuffer
	ended   chan struct{} // closed at the end of the process, of which err is the state
	err     error
}

// pause stops the daemon and waits until each of its threads has stopped: on a busy machine
// some run on for milliseconds after the signal.
func (v *victim) pause() {
	v.t.Helper()
	if err := v.command.Process.Signal(syscall.SIGSTOP); err != nil {
		v.t.Fatal(err)
	}
	eventually(v.t, "the daemon is stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", v.command.Process.Pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
			text, _ := os.ReadFile(path) // PID (NAME) STATE ...
			return !bytes.Contains(text, []byte(") T "))
		})
	})
}

// resume ends a pause. Without one it does nothing.
func (v *victim) resume() { _ = v.command.Process.Signal(syscall.SIGCONT) }

// small is a daemon that suits a test; later flags win.
var small = []string{"-arena=16MiB", "-private=8MiB", "-staging=1MiB", "-slots=1MiB", "-connection-memory=256MiB", "-page-bytes=4KiB"}

// launch starts a daemon on a socket in a directory of its own, and waits for nothing.
func launch(t testing.TB, b bounds, flags ...string) *victim {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{t: t, Dir: shortDir(t), HTTP: address(t), log: &lockedBuffer{}, ended: make(chan struct{})}
	if b.UID != 0 {
		if err := os.Chown(v.Dir, b.UID, b.GID); err != nil {
			t.Fatal(err)
		}
	}
	v.Socket = filepath.Join(v.Dir, "s")
	args := slices.Concat([]string{path, "-socket=" + v.Socket, "-http=" + v.HTTP}, small, flags)
	for _, f := range flags {
		if at, ok := strings.CutPrefix(f, "-socket="); ok {
			v.Socket = at
		}
		v.secure = v.secure || strings.HasPrefix(f, "-admin-tls-cert-file=")
	}
	v.command = as(t, "exec", b, args...)
	v.command.Stderr = v.log
	if err := v.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		v.err = v.command.Wait()
		close(v.ended)
	}()
	t.Cleanup(v.stop)
	return v
}

// start is launch, and waits until the daemon serves.
func start(t testing.TB, b bounds, flags ...string) *victim {
	t.Helper()
	v := launch(t, b, flags...)
	eventually(t, "the daemon serves", func() bool {
		v.mustRun()
		return v.health().Status == api.HealthOK || v.health().Status == api.HealthDegraded
	})
	return v
}

// address is of this machine, and nobody else's until the test ends.
func address(t testing.TB) string {
	t.Helper()
	list, release, err := loopback.Reserve(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return list[0]
}

// running reports whether the process has not ended.
func (v *victim) running() bool {
	select {
	case <-v.ended:
		return false
	default:
		return true
	}
}

// mustRun fails the test with the daemon's log when it has ended.
func (v *victim) mustRun() {
	v.t.Helper()
	if !v.running() {
		v.t.Fatalf("the daemon ended: %v\n%s", v.err, v.log)
	}
}

// stop ends the daemon; one that an attack took down, or that does not end, fails the test.
func (v *victim) stop() {
	v.t.Helper()
	if !v.running() {
		return
	}
	_ = v.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-v.ended:
	case <-time.After(patience):
		_ = v.command.Process.Kill()
		<-v.ended
		v.t.Errorf("the daemon does not end\n%s", v.log)
	}
}

// get answers a path of the admin REST; an error reads as status 0.
func (v *victim) get(path string) (status int, body string) {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := &http.Client{Transport: transport, Timeout: patience}
	scheme := "http"
	if v.secure {
		scheme = "https"
	}
	answer, err := client.Get(scheme + "://" + v.HTTP + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// health is what /readyz?verbose=true answers; zero while it does not.
func (v *victim) health() api.Health {
	var h api.Health
	if _, body := v.get("/readyz?verbose=true"); json.Unmarshal([]byte(body), &h) != nil {
		return api.Health{}
	}
	return h
}

// metric is a series of /metrics by its name with labels; false when it is not there.
func (v *victim) metric(series string) (float64, bool) {
	_, body := v.get("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return n, err == nil
		}
	}
	return 0, false
}

// client is one that is attached.
func (v *victim) client(o connector.Options) *connector.Client {
	v.t.Helper()
	o.Socket = v.Socket
	o.Timeouts = connector.Timeouts{Lookup: patience, Transfer: patience, Attach: patience}
	c, err := connector.Open(o)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.WaitAttached(ctx); err != nil {
		v.t.Fatalf("%v\n%s", err, v.log)
	}
	return c
}

// p99 makes a call n times and returns the 99th of 100 of its durations.
func p99(n int, call func()) time.Duration {
	took := make([]time.Duration, n)
	for i := range took {
		begun := time.Now()
		call()
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return took[(n*99-1)/100]
}

// report prints the line of an attack.
func report(t testing.TB, tried, got, felt string) {
	t.Helper()
	t.Logf("HOSTILE %s | tried: %s | attacker got: %s | others felt: %s", t.Name(), tried, got, felt)
}

// lockedBuffer is the log of a process that writes while it is read.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
