package server

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
)

// webTest is gRPC and something else over net/http, as the admin API is served.
type webTest struct {
	in      *adminIntake
	address string
	client  *http.Client
}

func newWebTest(t *testing.T, change ...func(*adminIntake)) *webTest {
	t.Helper()
	calls := grpc.NewServer(requests(), grpc.MaxRecvMsgSize(MaxAdminMessage))
	healthpb.RegisterHealthServer(calls, health.NewServer())
	reflection.Register(calls)
	w := &webTest{in: newAdminIntake()}
	for _, c := range change {
		c(w.in)
	}
	s := httptest.NewUnstartedServer(w.in.bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && isGRPC(r.Header.Get("Content-Type")) {
			calls.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(body)
	})))
	s.EnableHTTP2 = true
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: AdminStreams}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		calls.Stop()
		s.Close()
	})
	w.address, w.client = s.Listener.Addr().String(), s.Client()
	return w
}

func (w *webTest) raw(t *testing.T) *rawH2 {
	t.Helper()
	conn, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	r := greet(t, conn)
	go r.read()
	return r
}

func (w *webTest) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *webTest) served(t *testing.T) {
	t.Helper()
	begin := time.Now()
	if _, err := healthpb.NewHealthClient(w.dial(t)).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("others are not served: %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("others had to wait for %s", took)
	}
}

func (w *webTest) holds() int64 {
	w.in.mu.Lock()
	defer w.in.mu.Unlock()
	return w.in.total
}

// drip begins calls and sends each a message a byte at a time, so that each byte is
// read by itself.
func drip(t *testing.T, r *rawH2) {
	t.Helper()
	const calls = 16
	for i := range uint32(calls) {
		if err := r.call(2*i+1, healthpb.Health_Watch_FullMethodName); err != nil {
			t.Fatal(err)
		}
		if err := r.frame(h2Data, 0, 2*i+1, binary.BigEndian.AppendUint32([]byte{0}, 200<<10)); err != nil {
			t.Fatal(err)
		}
	}
	var round []byte
	for i := range byte(calls) {
		round = append(round, 0, 0, 1, h2Data, 0, 0, 0, 0, 2*i+1, 0)
	}
	_ = r.conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	for range 1500 {
		if _, err := r.conn.Write(round); err != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Nobody knows who it is, and what it says comes in bytes: gRPC over net/http would
// keep 16 KiB for each.
func TestABodyThatComesByTheByteFillsNothing(t *testing.T) {
	w := newWebTest(t)
	w.served(t)
	before := heapNow()
	r := w.raw(t)
	drip(t, r)
	grown := heapNow() - before
	t.Logf("the heap grew by %d KiB", grown>>10)
	if grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	w.served(t)
	_ = r.conn.Close()
	eventuallyNone(t, w)
}

// A call that takes one message ends with the second.
func TestABodyThatNeverEndsFillsNothing(t *testing.T) {
	w := newWebTest(t)
	w.served(t)
	before := heapNow()
	r := w.raw(t)
	_ = r.conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	for i := range uint32(8) {
		if err := r.call(2*i+1, healthpb.Health_Watch_FullMethodName); err != nil {
			t.Fatal(err)
		}
	}
	flood := make([]byte, 15<<10)
	for n := range uint32(8 * 4000) {
		if r.frame(h2Data, 0, 2*(n%8)+1, flood) != nil {
			break
		}
	}
	if grown := heapNow() - before; grown > 24<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	for end := time.Now().Add(10 * time.Second); r.ends.Load()+r.resets.Load() < 8; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("they go on")
		}
	}
	w.served(t)
	_ = r.conn.Close()
	eventuallyNone(t, w)
}

func eventuallyNone(t *testing.T, w *webTest) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); w.holds() != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are never given back", w.holds())
		}
	}
}

// Messages that are announced and do not come take the places of their address for a
// while, and no more than those.
func TestBodiesThatDoNotComeAreBounded(t *testing.T) {
	w := newWebTest(t, func(in *adminIntake) { in.address, in.patience = 4<<20, 2*time.Second })
	w.served(t)
	before := heapNow()
	var all []*rawH2
	for range 3 {
		r := w.raw(t)
		all = append(all, r)
		for i := range uint32(AdminStreams / 2) {
			if err := r.call(2*i+1, healthpb.Health_Check_FullMethodName); err != nil {
				t.Fatal(err)
			}
			if err := r.frame(h2Data, 0, 2*i+1, append(binary.BigEndian.AppendUint32([]byte{0}, MaxAdminBody), make([]byte, 8<<10)...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(500 * time.Millisecond)
	if held := w.holds(); held > 4<<20 {
		t.Errorf("one address holds %d KiB", held>>10)
	}
	if grown := heapNow() - before; grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	_, err := healthpb.NewHealthClient(w.dial(t)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if e := wire.FromStatus(err); e != nil && (e.Reason != wire.ReasonTooManyCalls || e.RetryAfter == 0) {
		t.Errorf("meanwhile its address gets %v", err)
	}
	resp, err := w.client.Post("https://"+w.address+"/v1/x", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK && (resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "") {
		t.Errorf("meanwhile its address gets %s", resp.Status)
	}
	_ = resp.Body.Close()
	time.Sleep(w.in.patience + time.Second)
	w.served(t)
	ended := int64(0)
	for _, r := range all {
		ended += r.ends.Load() + r.resets.Load()
	}
	if ended < 3*AdminStreams/2 {
		t.Errorf("%d calls were ended, want all %d", ended, 3*AdminStreams/2)
	}
	eventuallyNone(t, w)
}

// What is due passes: messages as large as may be, streams of several, and REST over
// both versions of HTTP.
func TestBodiesThatAreDuePass(t *testing.T) {
	w := newWebTest(t, func(in *adminIntake) { in.patience = 500 * time.Millisecond })
	conn := w.dial(t)
	for range 40 {
		if err := conn.Invoke(t.Context(), healthpb.Health_Check_FullMethodName, junk(MaxAdminBody-64), new([]byte), grpc.ForceCodec(bytesCodec{})); err != nil {
			t.Fatal(err)
		}
	}
	s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if i == 10 {
			// A stream may take its time.
			time.Sleep(2 * w.in.patience)
		}
		if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	_ = s.CloseSend()
	one := w.client.Transport.(*http.Transport).Clone()
	one.TLSClientConfig.NextProtos, one.ForceAttemptHTTP2, one.TLSNextProto = []string{"http/1.1"}, false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	defer one.CloseIdleConnections()
	for version, client := range map[int]*http.Client{2: w.client, 1: {Transport: one}} {
		for size, want := range map[int]int{0: http.StatusOK, 1: http.StatusOK, MaxAdminBody: http.StatusOK, MaxAdminBody + 1: http.StatusBadRequest, 4 * MaxAdminBody: http.StatusBadRequest} {
			resp, err := client.Post("https://"+w.address+"/v1/x", "application/json", strings.NewReader(strings.Repeat("a", size)))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != want || resp.ProtoMajor != version || want == http.StatusOK && len(body) != size {
				t.Errorf("%d bytes over HTTP/%d: %s, %d bytes", size, resp.ProtoMajor, resp.Status, len(body))
			}
		}
	}
	if err := conn.Invoke(t.Context(), healthpb.Health_Check_FullMethodName, junk(MaxAdminBody), new([]byte), grpc.ForceCodec(bytesCodec{})); err == nil {
		t.Error("a message beyond the limit passed")
	}
	eventuallyNone(t, w)
}

// The same on the admin API itself.
func TestWhoIsNotKnownFillsNothingOfTheAdminAPI(t *testing.T) {
	a := newAdminTest(t)
	if _, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{}); err != nil {
		t.Fatal(err)
	}
	before := heapNow()
	c := a.tls()
	c.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", a.address, c)
	if err != nil {
		t.Fatal(err)
	}
	r := greet(t, conn)
	go r.read()
	drip(t, r)
	if grown := heapNow() - before; grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if _, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{}); err != nil {
		t.Error(err)
	}
	_ = conn.Close()
	<-r.told
}

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := atMost(l, 8, 3)
	kept := make(chan net.Conn, 16)
	go func() {
		defer close(kept)
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			kept <- c
		}
	}()
	defer func() { _ = l.Close() }()
	open := func() bool {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		_, err = c.Read(make([]byte, 1))
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	for i := range 5 {
		if got := open(); got != (i < 3) {
			t.Errorf("connection %d is kept: %t", i, got)
		}
	}
	c := <-kept
	_ = c.Close()
	_ = c.Close()
	if !open() || open() {
		t.Error("a place that was given back is not one place")
	}
}
