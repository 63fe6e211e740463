package vk

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The library's handlers start it, and nothing ends it.
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		// Idle connections of the clients in tests.
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
		// It waits up to a second for a reader of the error of a connection that the other end closed first. For open
		// streams it waits with shutdown.func1, which is reported.
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
	)
}
