package hostile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/trust"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// Who takes part, none of them root. fsGroup is the group that may connect.
const (
	daemonUID = 65532
	engineUID = 1000
	mallory   = 1001
	fsGroup   = 2000
)

var member = bounds{UID: mallory, GID: mallory, Groups: []int{fsGroup}}

const secret = "a token of sixteen bytes or more"

// seize tries to put a socket of its own in the place of args[0], in all ways that
// there are, and says which were refused. With args[1] == "dir" it moves the
// directory away instead. When it has the path it keeps what the first client sends
// for a second at most.
var seize = role("seize", func(args []string) error {
	path := args[0]
	moved := path
	if len(args) > 1 {
		moved = filepath.Dir(path)
	}
	rename := os.Rename(moved, moved+".moved")
	if len(args) > 1 && rename == nil {
		if err := os.Mkdir(moved, 0o755); err != nil {
			return err
		}
	}
	l, err := seqpacket.Listen(path, 0o777, 8)
	if err != nil {
		fmt.Printf("refused: rename: %v; bind: %v; remove: %v\n", rename, err, os.Remove(path))
		return nil
	}
	fmt.Println("seized")
	got := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			got <- ""
			return
		}
		buf := make([]byte, 1<<16)
		n, _, _ := conn.Recv(buf)
		got <- string(buf[:n])
	}()
	select {
	case text := <-got:
		fmt.Printf("got: %q\n", text)
	case <-time.After(time.Second):
		fmt.Println("got: nothing")
	}
	return nil
})

// join attaches to args[0], believing the user args[1] (empty: whom the path says), and
// shows a token. It prints "attached", or in one line why not.
var join = role("join", func(args []string) error {
	o := connector.Options{Socket: args[0], Tenants: []connector.Tenant{{Name: "default", Token: secret}}}
	if args[1] != "" {
		n, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil {
			return err
		}
		uid := uint32(n)
		o.DaemonUID = &uid
	}
	c, err := connector.Open(o)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.WaitAttached(ctx); err != nil {
		fmt.Println("stays away:", err)
		return nil
	}
	fmt.Println("attached")
	return nil
})

// directory makes one of root's with a group and mode, as kubelet does for an emptyDir
// with fsGroup.
func directory(t *testing.T, mode uint32) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP: only root can act as other users")
	}
	dir := filepath.Join(shortDir(t), "v")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 0, fsGroup), unix.Chmod(dir, mode)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A member of the group that may connect cannot get between the daemon and its clients.
func TestHostileMemberOfTheGroupCannotSeizeTheSocket(t *testing.T) {
	for _, mode := range []uint32{0o770, 0o2777} {
		v := launch(t, bounds{}, "-socket="+filepath.Join(directory(t, mode), "s"))
		eventually(t, fmt.Sprintf("a daemon in a directory of mode %#o leaves", mode), func() bool { return !v.running() })
		if !strings.Contains(v.log.String(), "others could replace the socket") {
			t.Errorf("in a directory of mode %#o: %v\n%s", mode, v.err, v.log)
		}
	}
	for name, dir := range map[string]string{"made by the daemon": filepath.Join(directory(t, 0o755), "d"), "made by an older one": directory(t, 0o2770), "sticky": directory(t, 0o3770)} {
		v := start(t, bounds{GID: fsGroup}, "-socket="+filepath.Join(dir, "s"))
		if said := output(t, seize, member, v.Socket); !strings.HasPrefix(said, "refused") {
			t.Errorf("%s: %s", name, said)
		}
		if said := output(t, join, bounds{UID: engineUID, GID: engineUID, Groups: []int{fsGroup}}, v.Socket, ""); said != "attached\n" {
			t.Errorf("%s: an engine %s", name, said)
		}
		v.stop()
	}
	report(t, "rename, bind over and remove of the socket by a member of its group", "no directory where that works is served in; else a refusal", "nothing")
}

// In a volume that the containers of a pod share, the socket's directory can be moved
// away. Nobody is taken in, and the daemon takes its place back.
func TestHostileNeighbourInTheVolumeGetsNoToken(t *testing.T) {
	t.Parallel() // it waits
	volume := directory(t, 0o2777)
	v := start(t, bounds{UID: daemonUID, GID: daemonUID, Groups: []int{fsGroup}}, "-socket="+filepath.Join(volume, "daemon", "s"))
	engine := bounds{UID: engineUID, GID: engineUID, Groups: []int{fsGroup}}
	expected := strconv.Itoa(daemonUID)
	if said := output(t, join, engine, v.Socket, expected); said != "attached\n" {
		t.Fatalf("the engine %s\n%s", said, v.log)
	}
	said := output(t, join, engine, v.Socket, "")
	if !strings.HasPrefix(said, "stays away") || !strings.Contains(said, "set "+trust.UIDEnv) || strings.Count(said, "\n") != 1 {
		t.Errorf("an engine that was not told whom to expect: %s", said)
	}

	attacker := as(t, seize, member, v.Socket, "dir")
	got := &lockedBuffer{}
	attacker.Stdout = got
	if err := attacker.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the neighbour listens", func() bool { return got.String() != "" })
	// It attaches when the daemon has its path back, and says nothing to the neighbour before.
	if said := output(t, join, engine, v.Socket, expected); said != "attached\n" {
		t.Errorf("the engine %s", said)
	}
	if err := attacker.Wait(); err != nil {
		t.Fatal(err)
	}
	if text := got.String(); !strings.HasPrefix(text, "seized") || strings.Contains(text, secret) {
		t.Errorf("the neighbour: %s", text)
	}
	eventually(t, "the daemon says that it took its socket back", func() bool {
		n, _ := v.metric("spliced_socket_replaced_total")
		return n == 1 && strings.Contains(v.log.String(), "restored") && v.health().Status == api.HealthOK
	})
	report(t, "a container of the pod moves the socket's directory away and listens in its own", strings.ReplaceAll(strings.TrimSpace(got.String()), "\n", ", "),
		"engines stayed away for a moment")
}

// A socket that root, or a script of an operator, removed or replaced is back soon.
func TestHostileReplacedSocketIsTakenBack(t *testing.T) {
	t.Parallel() // it waits
	v := start(t, bounds{})
	for name, attack := range map[string]func() error{
		"removed": func() error { return os.Remove(v.Socket) },
		"replaced": func() error {
			l, err := seqpacket.Listen(v.Socket+".x", 0o600, 1)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			return os.Rename(v.Socket+".x", v.Socket)
		},
		"displaced with its directory": func() error { return os.Rename(filepath.Dir(v.Socket), filepath.Dir(v.Socket)+".gone") },
	} {
		before, _ := v.metric("spliced_socket_replaced_total")
		if err := attack(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the path leads to the daemon again when it was "+name, func() bool {
			n, ok := v.metric("spliced_socket_replaced_total")
			return ok && n == before+1 && v.health().Status == api.HealthOK
		})
		v.client(connector.Options{Name: "after"}).Close()
		eventually(t, "the admin socket is there again when the other was "+name, func() bool { return v.adminAnswers() })
		if err := os.Remove(api.SocketBeside(v.Socket)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the admin socket is there again when it was removed", func() bool { return v.adminAnswers() })
	}
	report(t, "rm of the sockets, another socket renamed over one, and their directory moved away", "the path for at most a second", "attached clients nothing, new ones a second")
}

// adminAnswers says whether the daemon is reached by its admin socket.
func (v *victim) adminAnswers() bool {
	c, err := api.NewClient("unix:"+api.SocketBeside(v.Socket), "")
	if err != nil {
		v.t.Fatal(err)
	}
	defer c.Close()
	status, err := c.Status(context.Background())
	return err == nil && status.Socket == v.Socket
}

// A stranger who answers on the path of the admin socket gets no bearer token.
func TestHostileAdminTokenStaysAtHome(t *testing.T) {
	if _, err := api.NewClient("unix:/tmp/x", secret); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a client of a unix socket took a bearer token: %v", err)
	}
	volume := directory(t, 0o2777)
	v := start(t, bounds{UID: daemonUID, GID: daemonUID, Groups: []int{fsGroup}}, "-socket="+filepath.Join(volume, "daemon", "s"))
	admin := api.SocketBeside(v.Socket)
	info, err := os.Stat(filepath.Dir(admin))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the admin socket's directory has mode %v", info.Mode())
	}
	if said := output(t, seize, member, admin); !strings.HasPrefix(said, "refused") {
		t.Errorf("a member of the group: %s", said)
	}
	c, err := api.NewClient("unix:"+admin, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Status(context.Background()); !errors.Is(err, trust.ErrStranger) {
		t.Errorf("a client that was not told whom to expect in a shared volume: %v", err)
	}
	t.Setenv(trust.UIDEnv, strconv.Itoa(daemonUID))
	if _, err := c.Status(context.Background()); err != nil {
		t.Errorf("a client that was: %v", err)
	}
	report(t, "a socket in the place of the admin socket", "a refusal; no client has a token to send there", "nothing")
}
