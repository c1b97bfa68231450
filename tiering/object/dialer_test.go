package object

import (
	"context"
	"errors"
	"net"
	"testing"
)

// A connection that is made while a client closes is closed too.
func TestCloseClosesLateConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	var d dialer
	early, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
	must(t, err)
	gone, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
	must(t, err)
	if err := gone.Close(); err != nil || len(d.open) != 1 {
		t.Errorf("%v, %d connections are open", err, len(d.open))
	}
	d.close()
	if _, err := early.Write([]byte{1}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection is open: %v", err)
	}
	if _, err := d.DialContext(context.Background(), "tcp", l.Addr().String()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a later one: %v", err)
	}
}
