package settings

import (
	"strings"
	"testing"
)

func TestWhatABucketNeeds(t *testing.T) {
	good := []string{
		"-object-bucket=cold-kv", "-object-endpoint=https://s3.example.com", "-object-credentials=/etc/spliced/s3", "-object-secret=/etc/spliced/secret",
	}
	for name, row := range map[string]struct {
		args []string
		env  map[string]string
		want string // in the error; empty = it is good
	}{
		"enough":                     {},
		"the environment's keys":     {args: []string{"-object-credentials="}, env: map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}},
		"the environment's file":     {args: []string{"-object-credentials="}, env: map[string]string{"AWS_SHARED_CREDENTIALS_FILE": "/home/x/.aws/credentials"}},
		"no credentials":             {args: []string{"-object-credentials="}, want: "object-credentials: no credentials: set a file, or AWS_ACCESS_KEY_ID"},
		"half of them":               {args: []string{"-object-credentials="}, env: map[string]string{"AWS_ACCESS_KEY_ID": "id"}, want: "object-credentials: no credentials"},
		"no server":                  {args: []string{"-object-endpoint="}, want: "object-endpoint: required"},
		"a plain server":             {args: []string{"-object-endpoint=http://s3.example.com"}, want: `object-endpoint: "http://s3.example.com" is plain HTTP to another host: use https://, or allow it with object-plain`},
		"a plain server, by name":    {args: []string{"-object-endpoint=http://s3.example.com", "-object-plain=on"}},
		"a plain server here":        {args: []string{"-object-endpoint=http://127.0.0.1:9000"}},
		"a server with a path":       {args: []string{"-object-endpoint=https://s3.example.com/kv"}, want: `object-endpoint: "https://s3.example.com/kv" is not https://HOST or https://HOST:PORT`},
		"a server without scheme":    {args: []string{"-object-endpoint=s3.example.com"}, want: `object-endpoint: "s3.example.com" is not https://HOST or https://HOST:PORT`},
		"a server with no such port": {args: []string{"-object-endpoint=https://s3.example.com:99999"}, want: `object-endpoint: "https://s3.example.com:99999" has no port between 1 and 65535`},
		"a server with port 0":       {args: []string{"-object-endpoint=https://s3.example.com:0"}, want: "has no port"},
		"a server with a port":       {args: []string{"-object-endpoint=https://[fd00::1]:9000"}},
		"a server by address":        {args: []string{"-object-endpoint=https://[fd00::1]"}},
		"no secret":                  {args: []string{"-object-secret="}, want: "object-secret: required without a cluster keyring"},
		"the cluster's secret":       {args: []string{"-object-secret=", "-cluster-secret=/etc/spliced/cluster"}},
		"a one-letter bucket":        {args: []string{"-object-bucket=b"}, want: `object-bucket: "b" is not 3 to 63`},
		"a bucket in capitals":       {args: []string{"-object-bucket=Cold"}, want: "object-bucket:"},
		"a bucket with a path":       {args: []string{"-object-bucket=cold/kv"}, want: "object-bucket:"},
		"a bucket that ends in -":    {args: []string{"-object-bucket=cold-"}, want: "object-bucket:"},
		"a bucket like an address":   {args: []string{"-object-bucket=192.168.0.1"}, want: "object-bucket:"},
		"a bucket of 63":             {args: []string{"-object-bucket=" + strings.Repeat("b", 63)}},
		"a bucket of 64":             {args: []string{"-object-bucket=" + strings.Repeat("b", 64)}, want: "object-bucket:"},
		"no prefix":                  {args: []string{"-object-prefix="}, want: "object-prefix:"},
		"an absolute prefix":         {args: []string{"-object-prefix=/a"}, want: "object-prefix:"},
		"a write that nobody knows":  {args: []string{"-object-write=some"}, want: "object-write:"},
		"a listing in every second":  {args: []string{"-object-list-every=1s"}, want: "object-list-every: 1s"},
		"no requests":                {args: []string{"-object-requests=0"}, want: "object-requests: 0"},
		"wrong although it is off":   {args: []string{"-object-bucket=", "-object-queue=1B"}, want: "object-queue:"},
		"nothing needed while it is": {args: []string{"-object-bucket=", "-object-secret=", "-object-endpoint=", "-object-credentials="}},
	} {
		if _, err := valid(from("", row.env, append(good[:4:4], row.args...)...)); (row.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

func TestAllThatABucketLacksIsTold(t *testing.T) {
	_, err := valid(from("", nil, "-object-bucket=cold-kv"))
	for _, name := range []string{"object-endpoint:", "object-credentials:", "object-secret:"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v tells nothing of %s", err, name)
		}
	}
}
