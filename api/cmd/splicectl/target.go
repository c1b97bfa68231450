package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/contexts"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/errkind"
)

// requestTimeout is the time limit for an answer, unless --timeout sets another.
const requestTimeout = 5 * time.Second

// slowTimeout is the time limit for slow requests: requests about many objects, and requests for
// which the node tests or reads something first.
const slowTimeout = time.Minute

// target is the node, or the nodes, that a command addresses.
type target struct {
	admin   string
	token   string
	context string
	timeout time.Duration

	allContexts bool
	members     bool
	memberPort  int
}

func (t *target) flags(fs *pflag.FlagSet) { t.flagsWith(fs, requestTimeout) }

func (t *target) flagsWith(fs *pflag.FlagSet, timeout time.Duration) {
	fs.StringVar(&t.admin, "admin", "", "admin `address`: a socket path or an http://host:port URL\n(default $SPLICED_ADMIN_SOCKET, or the current context, or admin/admin.sock beside the engine socket)")
	fs.StringVar(&t.token, "token-file", "", "`file` with the bearer token for HTTP; a socket needs none")
	fs.StringVar(&t.context, "context", "", "`name` of the daemon to ask; splicectl context ls lists the names")
	fs.DurationVar(&t.timeout, "timeout", timeout, "maximum `time` for each request")
}

// named reports whether a flag names the node. A named node may be on another machine.
func (t *target) named() bool { return t.admin != "" || t.context != "" }

// client returns a client of the single node.
func (t *target) client() (*api.Client, error) {
	address, token, err := t.address()
	if err != nil {
		return nil, err
	}
	client, err := t.clientOf(address, token)
	if errors.Is(err, api.ErrInvalid) {
		return nil, cli.UsageError{Text: err.Error()}
	}
	return client, err
}

// address returns the node's address, and the file with the token.
func (t *target) address() (address, token string, err error) {
	named := contexts.Context{Admin: t.admin}
	switch {
	case t.admin != "" && t.context != "":
		return "", "", cli.Usagef("--admin and --context cannot be combined")
	case t.admin != "":
	case t.context == "" && os.Getenv("SPLICED_ADMIN_SOCKET") != "":
		named.Admin = os.Getenv("SPLICED_ADMIN_SOCKET")
	default:
		if named, err = contextNamed(t.context); err != nil {
			return "", "", err
		}
	}
	if t.token != "" {
		named.TokenFile = t.token
	}
	return named.Admin, named.TokenFile, nil
}

// contextNamed returns the context of that name. For the name "" it returns the current context or,
// if there is no current context, one for the default socket of this machine.
func contextNamed(name string) (contexts.Context, error) {
	f, err := contexts.Load()
	if err != nil {
		return contexts.Context{}, err
	}
	if name == "" && f.Current == "" {
		return contexts.Context{Admin: api.SocketBeside(connector.DefaultSocket())}, nil
	}
	name = cmp.Or(name, f.Current)
	found, ok := f.Find(name)
	if !ok {
		return found, fmt.Errorf("no context %q; splicectl context ls lists them", name)
	}
	return found, nil
}

// clientOf returns a client of an address, with the token from a file. It returns api.ErrInvalid
// for an address that can never be right.
func (t *target) clientOf(address, tokenFile string) (*api.Client, error) {
	if t.timeout <= 0 {
		return nil, cli.Usagef("--timeout %v is not above 0", t.timeout)
	}
	if path, ok := socketPath(address); ok {
		if looksLikeHost(address) {
			host := address
			if !strings.Contains(host, ":") {
				host += ":9400"
			}
			return nil, errkind.With(fmt.Errorf("there is no socket %s here; for TCP write http://%s", address, host), api.ErrInvalid)
		}
		address = "unix:" + path
	}
	token := ""
	if tokenFile != "" {
		var err error
		if token, err = readToken(tokenFile); err != nil {
			return nil, err
		}
	}
	client, err := api.NewClient(address, token)
	if err == nil {
		client.SetTimeout(t.timeout)
	}
	return client, err
}

// readToken reads a file with a token.
func readToken(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("token: %s is empty", path)
	}
	return token, nil
}

// socketPath returns the path of an address that is not a URL.
func socketPath(address string) (path string, ok bool) {
	path, is := strings.CutPrefix(address, "unix:")
	return path, is || !strings.Contains(address, "://")
}

// looksLikeHost reports whether an address is rather a host without a scheme than the path of a
// socket: it names no directory, does not end in .sock and does not exist.
func looksLikeHost(address string) bool {
	if address == "" || strings.Contains(address, "/") || strings.HasPrefix(address, "unix:") || strings.HasSuffix(address, ".sock") {
		return false
	}
	_, err := os.Lstat(address)
	return errors.Is(err, os.ErrNotExist)
}

// explain adds remedies for common failures.
func explain(err error) string {
	if text := remedy(err); text != "" {
		return err.Error() + "\n" + text
	}
	return err.Error()
}

func remedy(err error) string {
	p, answered := errors.AsType[*api.Problem](err)
	op, dialed := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, api.ErrTokenRefused):
		return "The token given is not the node's: name the file of the right one with --token-file or in the context."
	case answered && p.Code == api.CodeUnauthorized:
		return "Give one with --token-file, or store it in the context: splicectl context add NAME ADDRESS --token-file FILE."
	case answered && strings.HasPrefix(p.Detail, "no such path: ") && !strings.HasPrefix(p.Detail, "no such path: /api/"):
		return "The address has a path: leave it out."
	case answered && strings.HasPrefix(p.Detail, "no such path: "):
		return "The daemon is older than this splicectl and does not have that yet."
	case answered || !errors.Is(err, api.ErrUnavailable):
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return "--timeout sets another limit; `splicectl doctor` checks more."
	case errors.Is(err, os.ErrPermission):
		return "The admin socket belongs to the daemon's user: run as that user, or use --admin http://…"
	case dialed && op.Op == "dial" && !errors.Is(err, unix.EPROTOTYPE): // an engine socket's error says what to do
		return "Is spliced running? --admin, --context or SPLICED_ADMIN_SOCKET name another address; `splicectl doctor` checks more."
	}
	return ""
}

// ageText formats the time since an event, in one unit.
func ageText(then, now time.Time) string { return show.Age{At: then, Now: now}.String() }

func shortKey(s fmt.Stringer) string { return s.String()[:12] }
