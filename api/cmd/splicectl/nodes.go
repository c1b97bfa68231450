package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/contexts"
)

// atOnce is the number of nodes queried concurrently.
const atOnce = 16

// node is a node to query. err is the reason why it cannot be queried.
type node struct {
	name   string // "" for a single node
	client *api.Client
	err    error
}

// nodeFlags declares the flags of commands that can query several nodes.
func (t *target) nodeFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&t.allContexts, "all-contexts", false, "ask all daemons that splicectl context ls lists")
	fs.BoolVar(&t.members, "members", false, "ask all members of the node's cluster over HTTP")
	fs.IntVar(&t.memberPort, "member-port", 0, "`port` of the members' admin REST (default: that of --admin, or 9400)")
}

// several reports whether more than one node may be queried.
func (t *target) several() bool { return t.allContexts || t.members }

// nodes returns the nodes to query. The caller closes them.
func (t *target) nodes(ctx context.Context) ([]node, error) {
	switch {
	case t.allContexts && (t.members || t.admin != "" || t.context != ""):
		return nil, cli.Usagef("--all-contexts cannot be combined with --members, --admin or --context")
	case t.memberPort != 0 && !t.members:
		return nil, cli.Usagef("--member-port goes with --members")
	case t.memberPort < 0 || t.memberPort > 65535:
		return nil, cli.Usagef("--member-port %d is not a port", t.memberPort)
	case t.allContexts:
		return t.everyContext()
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	if !t.members {
		return []node{{client: client}}, nil
	}
	defer client.Close()
	cluster, err := client.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	return t.everyMember(&cluster)
}

func (t *target) everyContext() ([]node, error) {
	f, err := contexts.Load()
	if err != nil {
		return nil, err
	}
	if len(f.Contexts) == 0 {
		return nil, fmt.Errorf("there are no contexts; create one with splicectl context add")
	}
	var nodes []node
	for _, c := range f.Contexts {
		n := node{name: c.Name}
		token := c.TokenFile
		if t.token != "" {
			token = t.token
		}
		n.client, n.err = t.clientOf(c.Admin, token)
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// everyMember returns the members of the cluster, except those that failed or left. It assumes
// that the admin REST of a member has the host of its peers' port, and the port at which this
// node is queried.
func (t *target) everyMember(known *api.Cluster) ([]node, error) {
	if !known.Enabled {
		return nil, fmt.Errorf("the node is not in a cluster")
	}
	address, token, err := t.address()
	if err != nil {
		return nil, err
	}
	scheme, port := "http", 9400
	if u, err := url.Parse(address); err == nil && u.Port() != "" {
		scheme = u.Scheme
		if port, err = strconv.Atoi(u.Port()); err != nil {
			return nil, err
		}
	}
	if t.memberPort != 0 {
		port = t.memberPort
	}
	var nodes []node
	for i := range known.Members {
		m := &known.Members[i]
		n := node{name: m.Name}
		host, _, err := net.SplitHostPort(m.Peer)
		switch {
		case m.State == api.MemberFailed, m.State == api.MemberLeft:
			continue
		case m.Self:
			n.client, n.err = t.clientOf(address, token)
		case m.State != api.MemberAlive:
			n.err = fmt.Errorf("it is %s: %w", m.State, api.ErrUnavailable)
		case err != nil:
			n.err = fmt.Errorf("its address is unknown: %w", err)
		default:
			n.client, n.err = t.clientOf(scheme+"://"+net.JoinHostPort(host, strconv.Itoa(port)), token)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// answer is the answer of one node.
type answer[T any] struct {
	node  string
	value T
	err   error
}

// askAll queries all nodes, up to atOnce of them at the same time, and closes their clients. It
// returns the answers in the order of the slice nodes.
func askAll[T any](ctx context.Context, nodes []node, ask func(context.Context, *api.Client) (T, error)) []answer[T] {
	out := make([]answer[T], len(nodes))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, n := range nodes {
		out[i] = answer[T]{node: n.name, err: n.err}
		if n.err != nil {
			continue
		}
		group.Go(func() error {
			defer n.client.Close()
			out[i].value, out[i].err = ask(ctx, n.client)
			return nil
		})
	}
	_ = group.Wait() // each answer has a separate error
	return out
}
