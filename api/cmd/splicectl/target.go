package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/trust"
)

// target is which node a command speaks to.
type target struct {
	admin string
	token string
}

func (t *target) flags(fs *flag.FlagSet) {
	fs.StringVar(&t.admin, "admin", "", "admin `address`: a socket path or an http://host:port URL\n(default $SPLICED_ADMIN_SOCKET, or admin/admin.sock beside the engine socket)")
	fs.StringVar(&t.token, "token-file", "", "`file` with the bearer token for changes, or for locate, over HTTP; a socket takes none")
}

func (t *target) client() (*api.Client, error) {
	address := t.admin
	if address == "" {
		address = defaultAdminSocket()
	}
	if !strings.Contains(address, "://") && !strings.HasPrefix(address, "unix:") {
		address = "unix:" + address
	}
	token := ""
	if t.token != "" {
		text, err := os.ReadFile(t.token)
		if err != nil {
			return nil, fmt.Errorf("read token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	return api.NewClient(address, token)
}

func defaultAdminSocket() string {
	if path := os.Getenv("SPLICED_ADMIN_SOCKET"); path != "" {
		return path
	}
	return api.SocketBeside(connector.DefaultSocket())
}

// explain adds what to do about the usual failures.
func explain(err error) string {
	var p *api.Problem
	switch {
	case errors.As(err, &p):
		return err.Error()
	case errors.Is(err, os.ErrPermission):
		return err.Error() + "\nThe admin socket belongs to the daemon's user: run as that user, or use -admin http://…"
	case errors.Is(err, trust.ErrStranger):
		return err.Error()
	case errors.Is(err, api.ErrUnavailable):
		return err.Error() + "\nIs spliced running? -admin or SPLICED_ADMIN_SOCKET names another address; `splicectl doctor` checks more."
	}
	return err.Error()
}
