package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary the program instead.
const roleEnv = "SPLICED_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		os.Args[0] = "spliced"
		main()
	}
	os.Exit(m.Run())
}

// program is the program with arguments, and nothing of our environment that
// could configure it.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, os.Args[0], args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SPLICED_") {
			command.Env = append(command.Env, e)
		}
	}
	command.Env = append(command.Env, roleEnv+"=1")
	return command
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spl")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestAnswersAndExitCodes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	taken := listener.Addr().String()
	for _, test := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"-version"}, 0, "spliced unknown"},
		{[]string{"-help"}, 0, "-max-connections (SPLICED_MAX_CONNECTIONS)"},
		{[]string{"-check", "-arena", "8MiB", "-private", "8MiB"}, 0, "the configuration is valid"},
		{[]string{"-check", "-workers", "-1", "-log-level", "loud", "-token-file", "/no/such/file"}, exitConfig, `bad configuration: -workers: -1 is not between 1 and 1024
-log-level: "loud" is not one of trace, debug, info, warn, error, disabled
-token-file: open /no/such/file: no such file or directory
`},
		{[]string{"-check", "-arena", "64TiB", "-http", taken}, 0, "memory: arena 64TiB and private"},
		{[]string{"-check", "-arena", "8MiB", "-private", "8MiB", "-http", taken}, 0, "a start would fail now: http: listen tcp " + taken + ": bind: address already in use: stop the process"},
		{[]string{"-http", taken, "-admin-socket", "off", "-socket", shortDir(t) + "/s"}, exitFailed, "http: listen tcp " + taken + ": bind: address already in use: stop the process that uses the port, or set another port"},
		{[]string{"-no-such-flag"}, exitConfig, "no-such-flag"},
		{[]string{"-http", "off", "-socket", "/no/such/directory/s"}, exitFailed, "/no/such/directory"},
	} {
		out, err := program(t, test.args...).CombinedOutput()
		code := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != test.code || !strings.Contains(string(out), test.text) {
			t.Errorf("%v: exit %d, want %d, and %q in:\n%s", test.args, code, test.code, test.text, out)
		}
	}
}

func TestHelpGoesToStandardOutput(t *testing.T) {
	var errs bytes.Buffer
	command := program(t, "-help")
	command.Stderr = &errs
	out, err := command.Output()
	if err != nil || errs.Len() > 0 || !strings.Contains(string(out), "-max-connections") {
		t.Errorf("%v, %q on standard error, %d bytes of help", err, &errs, len(out))
	}
}

func TestItOutlivesTheReaderOfItsLog(t *testing.T) {
	dir := shortDir(t)
	socket := filepath.Join(dir, "s")
	command := program(t, "-socket", socket, "-http", "off", "-arena", "16MiB", "-private", "8MiB")
	log, end, err := os.Pipe()
	must(t, err)
	command.Stderr = end
	must(t, command.Start())
	end.Close()
	var head [1]byte
	if _, err := log.Read(head[:]); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); time.Since(begun) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
	}
	log.Close()
	// It says that it stops, and that it has.
	must(t, command.Process.Signal(syscall.SIGTERM))
	if err := command.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// SIGHUP has it read its tokens again, and goes on with the former ones where one is bad.
func TestItReadsTokensAgain(t *testing.T) {
	dir := shortDir(t)
	socket, token := filepath.Join(dir, "s"), filepath.Join(dir, "token")
	must(t, os.WriteFile(token, []byte("a token of the first day"), 0o600))
	command := program(t, "-socket", socket, "-http", "127.0.0.1:0", "-token-file", token, "-arena", "16MiB", "-private", "8MiB", "-log-level", "error")
	log, err := command.StderrPipe()
	must(t, err)
	must(t, command.Start())
	lines := bufio.NewScanner(log)
	line := func() string {
		if !lines.Scan() {
			t.Fatalf("the log has ended: %v", lines.Err())
		}
		return lines.Text()
	}
	for begun := time.Now(); time.Since(begun) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unixpacket", socket); err == nil {
			conn.Close()
			break
		}
	}
	for _, step := range []struct{ content, want string }{
		{"short", token + " has 5 bytes"}, {"a token of the second day", `"changed":["token-file"]`}, {"a token of the second day", `"changed":[]`},
	} {
		must(t, os.WriteFile(token, []byte(step.content), 0o600))
		got := "still opening"
		for strings.Contains(got, "still opening") {
			must(t, command.Process.Signal(syscall.SIGHUP))
			got = line()
		}
		if !strings.Contains(got, step.want) {
			t.Errorf("%q: no %s in %s", step.content, step.want, got)
		}
	}
	must(t, command.Process.Signal(syscall.SIGTERM))
	if err := command.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// A pipe that is full, and that nobody reads, holds up neither start nor end.
func TestItDoesNotWaitForTheReaderOfItsLog(t *testing.T) {
	dir := shortDir(t)
	socket := filepath.Join(dir, "s")
	log, end, err := os.Pipe()
	must(t, err)
	defer log.Close()
	must(t, end.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err == nil {
		_, err = end.Write(make([]byte, 4096))
	}
	raw, err := end.SyscallConn()
	must(t, err)
	if failed := raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) }); failed != nil || err != nil { // which the daemon inherits
		t.Fatal(failed, err)
	}
	command := program(t, "-socket", socket, "-http", "off", "-arena", "16MiB", "-private", "8MiB", "-log-level", "debug")
	command.Stderr = end
	must(t, command.Start())
	end.Close()
	serves := func() bool { _, err := os.Stat(socket); return err == nil }
	for begun := time.Now(); !serves() && time.Since(begun) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
	}
	if !serves() {
		t.Error("it does not serve")
	}
	must(t, command.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		_ = command.Process.Kill()
		t.Error("it does not end")
	}
}

func TestItTellsTheServiceManagerAndEndsOnSIGTERM(t *testing.T) {
	dir := shortDir(t)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	must(t, err)
	defer manager.Close()
	must(t, manager.SetReadDeadline(time.Now().Add(30*time.Second)))
	told := func() string {
		buf := make([]byte, 1024)
		n, err := manager.Read(buf)
		must(t, err)
		return string(buf[:n])
	}
	socket := filepath.Join(dir, "s")
	command := program(t, "-socket", socket, "-http", "off", "-arena", "16MiB", "-private", "8MiB")
	command.Env = append(command.Env, "NOTIFY_SOCKET="+manager.LocalAddr().String())
	var log bytes.Buffer
	command.Stderr = &log
	must(t, command.Start())
	if s := told(); !strings.HasPrefix(s, "READY=1") {
		t.Errorf("told %q", s)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Error(err)
	}
	must(t, command.Process.Signal(syscall.SIGTERM))
	if s := told(); s != "STOPPING=1" {
		t.Errorf("told %q", s)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("ended with %v\n%s", err, &log)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket after the end: %v", err)
	}
	for _, part := range []string{`"message":"serving"`, `"message":"stopped"`} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("no %s in the log:\n%s", part, &log)
		}
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
