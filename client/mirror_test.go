package client_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// statusProvider is a provider that has some pods, and sends statuses of them.
type statusProvider struct {
	ententev1.UnimplementedOffloadServiceServer
	pods     []peering.ObjectRef
	statuses chan *ententev1.SyncResponse_Status
	mu       sync.Mutex
	streams  int
}

func (p *statusProvider) Sync(stream ententev1.OffloadService_SyncServer) error {
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	for _, pod := range p.pods {
		if err := stream.Send(wire.HeldTo(peering.Held{Ref: pod})); err != nil {
			return err
		}
	}
	if err := stream.Send(wire.SyncedTo()); err != nil {
		return err
	}
	for {
		select {
		case s := <-p.statuses:
			if err := stream.Send(&ententev1.SyncResponse{Message: &ententev1.SyncResponse_Status_{Status: s}}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// statusHandler remembers the statuses that a Mirror passes on.
type statusHandler struct {
	mu       sync.Mutex
	statuses []peering.PodStatus
	lost     int
}

func (h *statusHandler) Connected(up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !up {
		h.lost++
	}
}

func (h *statusHandler) PodStatus(s peering.PodStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.statuses = append(h.statuses, s)
}
func (*statusHandler) PodEvent(peering.PodEvent)                 {}
func (*statusHandler) Ack(peering.Ack)                           {}
func (*statusHandler) Orphan(context.Context, peering.Held) bool { return false }

// await waits until n statuses were passed on, and returns them.
func (h *statusHandler) await(t *testing.T, n int) []peering.PodStatus {
	t.Helper()
	waittest.Eventually(t, fmt.Sprintf("%d statuses are passed on", n), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.statuses) >= n
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.statuses
}

// lineBuffer counts the lines that are logged.
type lineBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lineBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lineBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

// mirrorOf starts the mirror of a provider.
func mirrorOf(t *testing.T, p *statusProvider) (*statusHandler, *lineBuffer) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	ententev1.RegisterOffloadServiceServer(s, p)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///provider", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	h, lines := &statusHandler{}, &lineBuffer{}
	m, err := client.NewMirror(client.MirrorConfig{Contract: "c-1", Conn: conn, Handler: h, MinBackoff: time.Millisecond, Log: slog.New(slog.NewTextHandler(lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h, lines
}

// The stream is that of all pods of a contract, and any user may cause a status that cannot be read.
func TestAnInvalidStatusEndsNoStream(t *testing.T) {
	t.Parallel()
	pod := func(name string) peering.ObjectRef {
		return peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: name, UID: "u-" + name}
	}
	bad, good := pod("bad"), pod("good")
	p := &statusProvider{pods: []peering.ObjectRef{bad, good}, statuses: make(chan *ententev1.SyncResponse_Status)}
	h, lines := mirrorOf(t, p)
	of := func(json string) *ententev1.SyncResponse_Status {
		return &ententev1.SyncResponse_Status{Ref: wire.ObjectRefTo(bad), Status: []byte(json)}
	}
	many := strings.Repeat(`{},`, 17_000) + `{}`
	named, late, other := of(`{}`), of(`{}`), of(`{}`)
	named.RemoteName, late.DeletionTimestamp, other.Ref = strings.Repeat("x", 1000), "yesterday", &ententev1.ObjectRef{Kind: ententev1.Kind_KIND_SERVICE, Uid: strings.Repeat("u", 1<<20)}
	invalid := map[string]*ententev1.SyncResponse_Status{
		"too long":                  of(`{"phase":"Running","message":"` + strings.Repeat("x", wire.MaxStatusBytes) + `"}`),
		"as long as an object":      of(`{"phase":"Running","message":"` + strings.Repeat("x", wire.MaxObjectBytes-100) + `"}`),
		"with too many elements":    of(`{"phase":"Running","podIPs":[` + many + `]}`),
		"with a huge amount":        of(`{"phase":"Running","allocatedResources":{"cpu":"1e999999999"}}`),
		"that is not JSON":          of("nonsense"),
		"whose phase is not a text": of(`{"phase":[],"podIPs":[` + many + `]}`),
		"with a long name":          named,
		"with a malformed time":     late,
		"of a Service":              other,
		"without a reference":       {},
	}
	for what, s := range invalid {
		p.statuses <- s
		p.statuses <- wire.PodStatusTo(peering.PodStatus{Ref: good, Status: []byte(`{"phase":"Running","message":"after one ` + what + `"}`)}).GetStatus()
	}
	for _, s := range h.await(t, len(invalid)) {
		if s.Ref != good {
			t.Errorf("the status %.200s of %s is passed on", s.Status, s.Ref)
		}
	}
	// How a pod ended is not lost with the rest.
	for _, phase := range []string{"Succeeded", "Running"} {
		end := of(`{"conditions":[` + many + `],"phase":"` + phase + `"}`)
		end.Gone = true
		p.statuses <- end
	}
	got := h.await(t, len(invalid)+2)[len(invalid):]
	if string(got[0].Status) != `{"phase":"Succeeded"}` || !got[0].Gone || got[0].Ref != bad || got[1].Status != nil || !got[1].Gone {
		t.Errorf("the ends are passed on as %+v", got)
	}
	p.mu.Lock()
	h.mu.Lock()
	if p.streams != 1 || h.lost != 0 {
		t.Errorf("there were %d streams, and %d ended", p.streams, h.lost)
	}
	h.mu.Unlock()
	p.mu.Unlock()
	before := strings.Count(lines.text(), "\n")
	if before != len(invalid)+2 {
		t.Errorf("%d lines are logged about %d statuses:\n%s", before, len(invalid)+2, lines.text())
	}
	const flood = 500
	for range flood {
		p.statuses <- other
		p.statuses <- invalid["that is not JSON"]
	}
	p.statuses <- wire.PodStatusTo(peering.PodStatus{Ref: good}).GetStatus()
	h.await(t, len(invalid)+3)
	if text := lines.text(); strings.Count(text, "\n") > 30 || len(text) > 30<<10 {
		t.Errorf("a flood of %d statuses causes %d bytes of log", flood, len(text))
	}
}
