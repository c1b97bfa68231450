#!/usr/bin/env bash
# memberlist calls NotifyLeave for a node that failed and for one that left. The Node that it
# hands over has a field State; this shows what is in it in either case.
#
# Seen with github.com/hashicorp/memberlist v0.7.0: State is 0 (StateAlive) both times, since
# the list keeps its own state beside the embedded Node. A program that shows members has to
# find out by other means, such as a farewell message, whether a node crashed.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module finding

go 1.24

require github.com/hashicorp/memberlist v0.7.0
EOF
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/memberlist"
)

type events struct{ left chan memberlist.Node }

func (events) NotifyJoin(*memberlist.Node)     {}
func (e events) NotifyLeave(n *memberlist.Node) { e.left <- *n }
func (events) NotifyUpdate(*memberlist.Node)   {}

func node(name string, e memberlist.EventDelegate) *memberlist.Memberlist {
	c := memberlist.DefaultLocalConfig()
	c.Name, c.BindAddr, c.BindPort, c.Events, c.LogOutput = name, "127.0.0.1", 0, e, io.Discard
	c.ProbeInterval, c.ProbeTimeout, c.SuspicionMult = 200*time.Millisecond, 100*time.Millisecond, 1
	list, err := memberlist.Create(c)
	if err != nil {
		panic(err)
	}
	return list
}

func main() {
	e := events{make(chan memberlist.Node, 2)}
	watcher := node("watcher", e)
	for _, how := range []string{"leaves", "fails"} {
		other := node(how, nil)
		if _, err := other.Join([]string{fmt.Sprintf("127.0.0.1:%d", watcher.LocalNode().Port)}); err != nil {
			panic(err)
		}
		for watcher.NumMembers() < 2 {
			time.Sleep(10 * time.Millisecond)
		}
		if how == "leaves" {
			if err := other.Leave(5 * time.Second); err != nil {
				panic(err)
			}
		}
		if err := other.Shutdown(); err != nil {
			panic(err)
		}
		select {
		case n := <-e.left:
			fmt.Printf("a node that %s: NotifyLeave, State %d\n", n.Name, n.State)
		case <-time.After(60 * time.Second):
			fmt.Println("NotifyLeave was not called")
			os.Exit(1)
		}
	}
	_ = watcher.Shutdown()
}
EOF
go mod tidy >/dev/null 2>&1
go run . | tee out
diff out - <<'EOF'
a node that leaves: NotifyLeave, State 0
a node that fails: NotifyLeave, State 0
EOF
echo "as found"
