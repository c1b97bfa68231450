package daemon

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/socket"
	"github.com/spliced-kv/spliced/policy/profile"
)

// roleEnv makes the test binary a client process instead.
const roleEnv = "SPLICED_TEST_CLIENT"

func TestMain(m *testing.M) {
	if socket := os.Getenv(daemonEnv); socket != "" {
		serveAndDie(socket)
		return
	}
	if socket := os.Getenv(roleEnv); socket != "" {
		if library := os.Getenv(libraryEnv); library != "" {
			useDevice(socket, library)
			return
		}
		holdAndWait(socket)
		return
	}
	os.Exit(m.Run())
}

// ourselves prepares the test binary as another process, with more variables.
func ourselves(env ...string) *exec.Cmd {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), env...)
	command.Stderr = os.Stderr
	return command
}

// holding is what the client process says once it holds everything.
type holding struct{ Child int }

// holdAndWait takes a lease, a reservation, a slot and a buffer, lets a child inherit the
// socket, says so, and waits to be killed.
func holdAndWait(socket string) {
	var t clientProcess
	c := attach(&t, socket)
	p := testProfile(1)
	c.register(p)
	held := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(held)
	lease := c.lease(held)
	c.call(wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: onePlan(lease, held, 1)}, &wire.ComposeReply{})
	if _, code := c.reserve(newDocument(p, nil, 2, 64, profile.RoleFirst), 0); code != wire.OK {
		t.Fatalf("reserve: %v", code)
	}
	c.appendRows(p, c.openBuffer(0, 0, 8), 0, 0, 3)
	child := exec.Command("sleep", "300")
	child.ExtraFiles = []*os.File{os.NewFile(uintptr(c.conn.Fd()), "socket")}
	must(t, child.Start())
	_ = json.NewEncoder(os.Stdout).Encode(holding{child.Process.Pid})
	select {}
}

// clientProcess is a testing.TB whose failures end the process.
type clientProcess struct{ testing.TB }

func (clientProcess) Helper()        {}
func (clientProcess) Cleanup(func()) {}
func (clientProcess) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(3)
}
func (p clientProcess) Fatalf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }
func (p clientProcess) Errorf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }

func TestAKilledClientIsFreedAtOnceThoughAChildHoldsItsSocket(t *testing.T) {
	config := testConfig(t)
	r := startDaemon(t, config, nil)
	if !socket.HasPidfd() {
		t.Skip("this kernel has no SO_PEERPIDFD")
	}
	command := ourselves(roleEnv + "=" + config.Socket)
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var h holding
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil {
		t.Fatalf("the client process: %v", err)
	}
	defer unix.Kill(h.Child, unix.SIGKILL)

	pools := r.store.Pools()
	if pools[0].LeasedBytes == 0 || pools[0].PendingBytes == 0 || pools[1].LeasedBytes == 0 {
		t.Fatalf("the client holds nothing: %+v", pools)
	}
	killed := time.Now()
	must(t, command.Process.Kill())
	r.atRest()
	t.Logf("free %v after kill -9", time.Since(killed))
	_ = command.Wait()
	// The child still has the socket open: it was not end of file that told us.
	if err := unix.Kill(h.Child, 0); err != nil {
		t.Errorf("the child is gone too: %v", err)
	}
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(h.Child) + "/fd")
	sockets := 0
	for _, fd := range fds {
		if target, _ := os.Readlink("/proc/" + strconv.Itoa(h.Child) + "/fd/" + fd.Name()); len(target) > 7 && target[:7] == "socket:" {
			sockets++
		}
	}
	if err != nil || sockets == 0 {
		t.Errorf("the child holds no socket (%v)", err)
	}
	// What the client had published stays.
	c := attach(t, r.Socket())
	p := testProfile(1)
	c.register(p)
	c.lease(newDocument(p, nil, 1, 64, profile.RoleFirst))
	if m := c.match(newDocument(p, nil, 2, 64, profile.RoleFirst).key); m.Status[0] != wire.StatusMiss || m.Reason[0] != wire.ReasonAborted {
		t.Errorf("the reservation: status %d, reason %d", m.Status[0], m.Reason[0])
	}
}
