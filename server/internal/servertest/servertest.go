// Package servertest has what the tests of the servers share: above all an HTTP/2 client that can
// break the protocol.
package servertest

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/entente-dev/entente/internal/waittest"
)

// Bytes sends bytes as they are: building a message of a million labels
// costs more than refusing it.
type Bytes struct{}

// Marshal implements encoding.Codec.
func (Bytes) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

// Unmarshal implements encoding.Codec.
func (Bytes) Unmarshal([]byte, any) error { return nil }

// Name implements encoding.Codec.
func (Bytes) Name() string { return "proto" }

// Heap is how much memory is in use after a collection.
func Heap() int64 {
	var m runtime.MemStats
	// The second collection frees what is pooled.
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// UnknownField is a field with a number that no message has.
func UnknownField(n int) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), make([]byte, n))
}

// NoneLeft waits until what a test began has ended.
func NoneLeft(t *testing.T, leaks goleak.Option) {
	t.Helper()
	var err error
	if !waittest.Soon(func() bool {
		err = goleak.Find(leaks)
		return err == nil
	}) {
		t.Error(err)
	}
}

// SyncBuffer is a buffer for several writers.
type SyncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *SyncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *SyncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// prompt is how long a call may take that nothing delays: a second or so, on a machine that is
// busy with other tests. patience is how long a test waits for an event that has to come.
const (
	Prompt   = 15 * time.Second
	Patience = time.Minute
)
