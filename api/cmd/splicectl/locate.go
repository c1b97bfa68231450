package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// maxQueryBytes bounds a query file.
const maxQueryBytes = 4 << 20

func locateCommand() cli.Command {
	return cli.Command{
		Name: "locate", Group: "look", Synopsis: "[flags] [FILE]",
		Summary: "Show which nodes of a cluster hold parts of a prompt, and how much time reusing these saves",
		About: `FILE contains the JSON body of POST /api/v1/locate or, with --model, the token ids of the prompt,
separated by blanks or commas. Without FILE, or if it is -, standard input is read.

HELD is the number of the prompt's tokens that a node holds itself, and SAVED the time to first
token that they save. FETCH is the number of tokens that the node would fetch from other nodes, and
WITH the time saved including these. What other nodes hold is what the node that is asked believes.

Exit status 1: no node holds a part of the prompt that saves time.`,
		Examples: []string{"query.json", "--model org/model --segments 0:512,512:300 --seam 8 tokens.txt", "--admin http://127.0.0.1:9400 --json query.json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			var q api.LocateQuery
			t.flags(fs)
			fs.StringVar(&q.Profile, "model", "", "`name` or fingerprint of the model; FILE then contains token ids")
			fs.StringVar(&q.Tenant, "tenant", "", "`tenant` that sends the prompt (default: the tenant named default)")
			fs.IntVar(&q.BlockTokens, "block", 0, "block size of the engine in `tokens`, to look for prefixes")
			fs.IntVar(&q.SeamTokens, "seam", 0, "seam width in `tokens`")
			fs.IntVar(&q.Limit, "nodes", 0, "list at most this `number` of nodes (default 64)")
			segments := fs.String("segments", "", "segments as BEGIN:TOKENS,...")
			return func(ctx context.Context, c *cli.Call) error {
				if err := readQuery(c, &q, *segments); err != nil {
					return err
				}
				return showLocated(ctx, c, &t, &q)
			}
		},
	}
}

// readQuery completes a query from its file and the flags.
func readQuery(c *cli.Call, q *api.LocateQuery, segments string) (err error) {
	if len(c.Args) > 1 {
		return cli.Usagef("takes one file, got %q", c.Args)
	}
	in := io.Reader(os.Stdin)
	if len(c.Args) == 1 && c.Args[0] != "-" {
		f, err := os.Open(c.Args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxQueryBytes+1))
	if err != nil {
		return err
	}
	if len(text) > maxQueryBytes {
		return fmt.Errorf("the query has more than %d bytes", maxQueryBytes)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return cli.Usagef("the query is empty: name a FILE, or write the query to standard input")
	}
	if q.Profile == "" {
		if segments != "" || q.Tenant != "" || q.BlockTokens != 0 || q.SeamTokens != 0 {
			return cli.Usagef("without --model the file says all but --nodes")
		}
		limit := q.Limit
		if err := json.Unmarshal(text, q); err != nil {
			return fmt.Errorf("invalid query: %w", jsonFault(err))
		}
		if limit != 0 {
			q.Limit = limit
		}
		return nil
	}
	for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" ,\t\r\n[]", r) }) {
		id, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return fmt.Errorf("token %d in the file is not a number from 0 to 2^32-1", len(q.TokenIDs))
		}
		q.TokenIDs = append(q.TokenIDs, uint32(id))
	}
	q.Segments, err = parseSpans(segments)
	return err
}

// jsonFault returns an error of package json in words of the document.
func jsonFault(err error) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not JSON at byte %d", syntax.Offset)
	}
	kind, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return err
	case kind.Field == "":
		return errors.New("not a JSON object")
	}
	return fmt.Errorf("%s cannot be a JSON %s", kind.Field, kind.Value)
}

// parseSpans parses BEGIN:TOKENS,...
func parseSpans(text string) (list []api.LocateSegment, err error) {
	if text == "" {
		return nil, nil
	}
	for _, part := range strings.Split(text, ",") {
		begin, tokens, ok := strings.Cut(part, ":")
		var s api.LocateSegment
		if s.Begin, err = strconv.Atoi(begin); err == nil && ok {
			s.Tokens, err = strconv.Atoi(tokens)
		}
		if err != nil || !ok {
			return nil, cli.Usagef("segment %q is not BEGIN:TOKENS", part)
		}
		list = append(list, s)
	}
	return list, nil
}

func showLocated(ctx context.Context, c *cli.Call, t *target, q *api.LocateQuery) error {
	client, err := t.client()
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := client.Locate(ctx, q)
	if err != nil {
		return err
	}
	return c.Conclude(found, func(w io.Writer) error { return printLocated(w, found) }, found.Best != "")
}

func printLocated(w io.Writer, l *api.Located) error {
	how := "measured"
	if !l.Measured {
		how = "not measured yet"
	}
	fmt.Fprintf(w, "prompt of %d tokens, %.1f ms to compute (%s); %d nodes were looked at\n", l.Tokens, l.RecomputeMillis, how, l.Members)
	if l.Best == "" {
		fmt.Fprintln(w, "nothing of it saves time on any node")
	} else {
		fmt.Fprintf(w, "best on %s\n", terminal.Line(l.Best))
	}
	if l.ExpectedFalse > 0.05 {
		fmt.Fprintf(w, "%s keys are expected to be reported as cached by mistake: doubt long prefixes of others, and ask for fewer positions\n", show.Number(l.ExpectedFalse))
	}
	t := show.NewTable(w, "NODE", "PREFIX", "SEGMENTS", "HELD", "SHARE", "SAVED", "FETCH", "WITH", "NOTE")
	for i := range l.Nodes {
		n := &l.Nodes[i]
		note := ""
		switch {
		case n.Self && n.MemoryTokens != nil && n.DiskTokens != nil:
			note = fmt.Sprintf("asked: %d in memory, %d on disk", *n.MemoryTokens, *n.DiskTokens)
		case !n.Complete:
			note = "not all it holds is known"
		}
		t.Row(n.Node, n.PrefixTokens, n.SegmentTokens, n.Tokens, fmt.Sprintf("%.0f%%", 100*n.Share),
			fmt.Sprintf("%.1f ms", n.SavedMillis), n.PeerTokens, fmt.Sprintf("%.1f ms", n.SavedWithPeersMillis), note)
	}
	return t.Flush()
}
