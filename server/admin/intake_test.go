package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
	"github.com/entente-dev/entente/server/internal/servertest"
)

// webTest is gRPC and something else over net/http, as the admin API is served.
type webTest struct {
	in      *adminIntake
	address string
	client  *http.Client
}

func newWebTest(t *testing.T, change ...func(*adminIntake)) *webTest {
	t.Helper()
	w := &webTest{in: newAdminIntake()}
	calls := grpc.NewServer(append(middleware.Options(slog.New(slog.DiscardHandler), w.in.received), grpc.MaxRecvMsgSize(MaxMessage))...)
	healthpb.RegisterHealthServer(calls, health.NewServer())
	reflection.Register(calls)
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
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: MaxStreams}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		calls.Stop()
		s.Close()
	})
	w.address, w.client = s.Listener.Addr().String(), s.Client()
	return w
}

func (w *webTest) raw(t *testing.T) *servertest.H2 {
	t.Helper()
	conn, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	r := servertest.Greet(t, conn)
	go r.Read()
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
	if took := time.Since(begin); took > servertest.Prompt {
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
func drip(t *testing.T, r *servertest.H2) {
	t.Helper()
	const calls = 16
	for i := range uint32(calls) {
		if err := r.Call(2*i+1, healthpb.Health_Watch_FullMethodName); err != nil {
			t.Fatal(err)
		}
		if err := r.Frame(servertest.FrameData, 0, 2*i+1, servertest.Message(200<<10)); err != nil {
			t.Fatal(err)
		}
	}
	var round []byte
	for i := range uint32(calls) {
		round = servertest.Frame(round, servertest.FrameData, 0, 2*i+1, []byte{0})
	}
	_ = r.Conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	for range 1500 {
		if _, err := r.Conn.Write(round); err != nil {
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
	before := servertest.Heap()
	r := w.raw(t)
	drip(t, r)
	grown := servertest.Heap() - before
	t.Logf("the heap grew by %d KiB", grown>>10)
	if grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	w.served(t)
	_ = r.Conn.Close()
	eventuallyNone(t, w)
}

// A call that takes one message ends with the second.
func TestABodyThatNeverEndsFillsNothing(t *testing.T) {
	w := newWebTest(t)
	w.served(t)
	before := servertest.Heap()
	r := w.raw(t)
	_ = r.Conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	for i := range uint32(8) {
		if err := r.Call(2*i+1, healthpb.Health_Watch_FullMethodName); err != nil {
			t.Fatal(err)
		}
	}
	flood := make([]byte, 15<<10)
	for n := range uint32(8 * 4000) {
		if r.Frame(servertest.FrameData, 0, 2*(n%8)+1, flood) != nil {
			break
		}
	}
	if grown := servertest.Heap() - before; grown > 24<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if !servertest.Eventually(func() bool { return r.Ends.Load()+r.Resets.Load() >= 8 }) {
		t.Fatal("they go on")
	}
	w.served(t)
	_ = r.Conn.Close()
	eventuallyNone(t, w)
}

func eventuallyNone(t *testing.T, w *webTest) {
	t.Helper()
	if !servertest.Eventually(func() bool { return w.holds() == 0 }) {
		t.Fatalf("%d bytes are never given back", w.holds())
	}
}

// Messages that are announced and do not come take the places of their address for a
// while, and no more than those.
func TestBodiesThatDoNotComeAreBounded(t *testing.T) {
	w := newWebTest(t, func(in *adminIntake) { in.address, in.patience = 4<<20, 2*time.Second })
	w.served(t)
	before := servertest.Heap()
	var all []*servertest.H2
	for range 3 {
		r := w.raw(t)
		all = append(all, r)
		for i := range uint32(MaxStreams / 2) {
			if err := r.Call(2*i+1, healthpb.Health_Check_FullMethodName); err != nil {
				t.Fatal(err)
			}
			if err := r.Frame(servertest.FrameData, 0, 2*i+1, servertest.Message(MaxBody, make([]byte, 8<<10)...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(500 * time.Millisecond)
	if held := w.holds(); held > 4<<20 {
		t.Errorf("one address holds %d KiB", held>>10)
	}
	if grown := servertest.Heap() - before; grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	_, err := healthpb.NewHealthClient(w.dial(t)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if e := wire.FromStatus(err); e != nil && (e.Reason != peering.ReasonTooManyCalls || e.RetryAfter == 0) {
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
	ended := func() (n int64) {
		for _, r := range all {
			n += r.Ends.Load() + r.Resets.Load()
		}
		return n
	}
	if !servertest.Eventually(func() bool { return ended() >= 3*MaxStreams/2 }) {
		t.Errorf("%d calls were ended, want all %d", ended(), 3*MaxStreams/2)
	}
	eventuallyNone(t, w)
	w.served(t)
}

// What is due passes: messages as large as may be, streams of several, and REST over
// both versions of HTTP.
func TestBodiesThatAreDuePass(t *testing.T) {
	w := newWebTest(t, func(in *adminIntake) { in.patience = 3 * time.Second })
	conn := w.dial(t)
	for range 40 {
		if err := conn.Invoke(t.Context(), healthpb.Health_Check_FullMethodName, servertest.UnknownField(MaxBody-64), new([]byte), grpc.ForceCodec(servertest.Bytes{})); err != nil {
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
			time.Sleep(w.in.patience + time.Second)
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
		for size, want := range map[int]int{0: http.StatusOK, 1: http.StatusOK, MaxBody: http.StatusOK, MaxBody + 1: http.StatusBadRequest, 4 * MaxBody: http.StatusBadRequest} {
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
	if err := conn.Invoke(t.Context(), healthpb.Health_Check_FullMethodName, servertest.UnknownField(MaxBody), new([]byte), grpc.ForceCodec(servertest.Bytes{})); err == nil {
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
	before := servertest.Heap()
	c := a.tls()
	c.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", a.address, c)
	if err != nil {
		t.Fatal(err)
	}
	r := servertest.Greet(t, conn)
	go r.Read()
	drip(t, r)
	if grown := servertest.Heap() - before; grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if _, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{}); err != nil {
		t.Error(err)
	}
	_ = conn.Close()
	<-r.Told
}

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := atMost(l, 3, 8, 3)
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
	// One that is not kept is closed, some time; one that is says nothing for a while.
	dial := func(while time.Duration) (open bool) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetReadDeadline(time.Now().Add(while))
		_, err = c.Read(make([]byte, 1))
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	const while = 300 * time.Millisecond
	for i := range 3 {
		if !dial(while) {
			t.Errorf("connection %d is not kept", i)
		}
	}
	for i := range 2 {
		if dial(servertest.Patience) {
			t.Errorf("connection %d is kept", i+3)
		}
	}
	c := <-kept
	_ = c.Close()
	_ = c.Close()
	if !dial(while) || dial(servertest.Patience) {
		t.Error("a place that was given back is not one place")
	}
}

// from dials the admin API from an address of its own.
func (a *adminTest) from(t *testing.T, ip string) *grpc.ClientConn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	conn, err := grpc.NewClient("passthrough:///"+a.address, grpc.WithTransportCredentials(credentials.NewTLS(a.tls())),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// administered checks that an administrator is served, over gRPC and REST.
func (a *adminTest) administered(t *testing.T) {
	t.Helper()
	begin := time.Now()
	if _, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{}); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	header := asAlice()
	header.Set("Content-Type", "application/json")
	if code, body, _ := a.rest(t, http.MethodPost, "/v1/tokens", "{}", header); code == http.StatusTooManyRequests || code >= 500 {
		t.Errorf("REST: %d %s", code, body)
	}
	if took := time.Since(begin); took > servertest.Prompt {
		t.Errorf("it took %s", took)
	}
}

func (a *adminTest) holds(ip string) int64 {
	in := a.server.intake
	in.mu.Lock()
	defer in.mu.Unlock()
	if h := in.held[ip]; h != nil {
		return h.bytes
	}
	return 0
}

// Health is for everybody, and so it takes and keeps next to nothing.
func TestWatchesOfHealthLockNobodyOut(t *testing.T) {
	a := newAdminTest(t)
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		c := healthpb.NewHealthClient(a.from(t, ip))
		for range 3 {
			w, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: strings.Repeat("a", 250<<10)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Recv(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("a long name from %s: %v", ip, err)
			}
		}
		if _, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: strings.Repeat("a", HealthName+1)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a long name: %v", err)
		}
		for i := range HealthWatches + 2 {
			w, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: strings.Repeat("a", 200)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Recv(); (err == nil) != (i < HealthWatches) {
				t.Errorf("watch %d from %s: %v", i, ip, err)
			}
		}
		if !servertest.Eventually(func() bool { return a.holds(ip) <= HealthWatches*adminBodyTaken }) {
			t.Fatalf("%s holds %d KiB", ip, a.holds(ip)>>10)
		}
	}
	a.administered(t)
}

// Nobody is locked out by bodies that others begin and do not end.
func TestBodiesThatOthersDoNotEndLockNobodyOut(t *testing.T) {
	a := newAdminTest(t)
	c := a.tls()
	c.NextProtos = []string{"h2"}
	body := servertest.Message(MaxBody, make([]byte, MaxBody-1)...)
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		conn, err := tls.DialWithDialer(&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}, "tcp", a.address, c)
		if err != nil {
			t.Fatal(err)
		}
		r := servertest.Greet(t, conn)
		go r.Read()
		for i := range uint32(3) {
			if err := r.Call(2*i+1, ententev1.AdminService_GetInfo_FullMethodName); err != nil {
				t.Fatal(err)
			}
			for rest := body; len(rest) > 0; rest = rest[min(len(rest), 16<<10):] {
				if err := r.Frame(servertest.FrameData, 0, 2*i+1, rest[:min(len(rest), 16<<10)]); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Cleanup(func() {
			_ = conn.Close()
			<-r.Told
		})
		if !servertest.Eventually(func() bool { return a.holds(ip) >= AdminUnread-(1<<20) }) {
			t.Fatalf("%s holds %d KiB", ip, a.holds(ip)>>10)
		}
	}
	a.administered(t)
}

// A message that its call waits for the end of does not stay.
func TestACallThatDoesNotEndIsNotKept(t *testing.T) {
	w := newWebTest(t, func(in *adminIntake) { in.patience = 500 * time.Millisecond })
	r := w.raw(t)
	defer func() { _ = r.Conn.Close() }()
	if err := r.Call(1, healthpb.Health_Watch_FullMethodName); err != nil {
		t.Fatal(err)
	}
	if err := r.Frame(servertest.FrameData, 0, 1, servertest.Message(10<<10, servertest.UnknownField(10<<10)...)); err != nil {
		t.Fatal(err)
	}
	if !servertest.Eventually(func() bool { return r.Ends.Load()+r.Resets.Load() > 0 }) {
		t.Fatal("it goes on")
	}
	eventuallyNone(t, w)
}

func TestWhoHoldsTheMostMakesRoom(t *testing.T) {
	const each = adminGrowth * MaxBody
	in := newAdminIntake()
	in.address, in.all = 3*each, 4*each
	cut := map[string]int{}
	body := func(address string) *boundedBody {
		return &boundedBody{in: in, address: address, remote: address + ":1", deadline: func(time.Time) error { return nil }, cancel: func(error) { cut[address]++ }}
	}
	for range 3 {
		if err := body("10.0.0.1").reserve(each); err != nil {
			t.Fatal(err)
		}
	}
	if err := body("10.0.0.1").reserve(each); !errors.Is(err, errBodiesTooBig) {
		t.Errorf("more than an address may hold: %v", err)
	}
	kept := body("10.0.0.2")
	if err := kept.reserve(each); err != nil {
		t.Fatal(err)
	}
	if err := kept.reserve(2 * each); !errors.Is(err, errAllTooBig) {
		t.Errorf("more than its share when all is full: %v", err)
	}
	if err := body("10.0.0.3").reserve(each); err != nil || cut["10.0.0.1"] != 1 {
		t.Errorf("one that holds less: %v, %v", err, cut)
	}
	if err := body("10.0.0.4").reserve(each); err != nil || cut["10.0.0.1"] != 2 {
		t.Errorf("another one: %v, %v", err, cut)
	}
	if err := body("10.0.0.5").reserve(each); !errors.Is(err, errAllTooBig) {
		t.Errorf("one that would hold as much as all others: %v", err)
	}
	if err := body("10.0.0.6").reserve(adminBodyLeast); err != nil {
		t.Errorf("a small one: %v", err)
	}
	// What was taken is nobody's to cut off, and is little.
	kept.whole = true
	in.decoded(kept.remote)
	if in.total > in.all || len(cut) == 0 || kept.reserved > adminBodyTaken && !kept.over {
		t.Errorf("%d bytes of %d, %d for what was decoded", in.total, in.all, kept.reserved)
	}
}

func TestAWatchOfHealthEnds(t *testing.T) {
	c := &middleware.Call{Method: healthpb.Health_Watch_FullMethodName}
	err := healthOnly(middleware.NewLimiter(1, 1, 1, time.Now), 10*time.Millisecond)(t.Context(), c, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(servertest.Patience):
			return errors.New("it goes on")
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// strangerConn is a connection from an address that a test says.
type strangerConn struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (c *strangerConn) RemoteAddr() net.Addr { return c.from }

func (c *strangerConn) Close() error {
	c.closed = true
	return nil
}

func TestConnectionsOfAFewLeaveOthersTheirPlaces(t *testing.T) {
	l := atMost(nil, 4, 6, 3).(*countedListener)
	dial := func(ip string) (c *strangerConn, kept, instead *countedConn) {
		c = &strangerConn{from: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
		kept, instead = l.keep(c)
		return c, kept, instead
	}
	// Two pods take all that they get.
	var first *countedConn
	for i := range 4 {
		for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
			_, kept, instead := dial(ip)
			if (kept != nil) != (i < 3) || instead != nil {
				t.Fatalf("connection %d of %s: %v, %v", i, ip, kept, instead)
			}
			if first == nil {
				first = kept
			}
		}
	}
	for i := range 5 {
		if _, kept, instead := dial("127.0.0.1"); (kept != nil) != (i < 4) || instead != nil {
			t.Errorf("connection %d from loopback: %v, %v", i, kept, instead)
		}
	}
	_, third, instead := dial("10.0.0.3")
	if third == nil || instead == nil || instead.address == "10.0.0.3" {
		t.Fatalf("a newcomer: %v, %v", third, instead)
	}
	_, fourth, second := dial("10.0.0.4")
	if fourth == nil || second == nil || second.address == instead.address || first != instead && first != second {
		t.Fatalf("another one: %v, %v after %v", fourth, second, instead)
	}
	// Each of them has two now, or one: nobody has more than a newcomer's second.
	if _, kept, _ := dial("10.0.0.3"); kept != nil {
		t.Error("one that would have as many as any other takes a place")
	}
	for _, c := range []*countedConn{first, third, third} {
		_ = c.Close()
	}
	if l.others.total != 5 || !third.Conn.(*strangerConn).closed {
		t.Errorf("%d are open after one of 6 was closed, twice", l.others.total)
	}
	if _, kept, instead := dial("10.0.0.5"); kept == nil || instead != nil {
		t.Errorf("the place that is free: %v, %v", kept, instead)
	}
}

// REST's calls may take minutes. What they sent is not held against their address.
func TestWhatAKnownCallerSentIsNotKept(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	a := newAdminTestWith(t, func(c *Config) {
		c.Introduce = func(ctx context.Context, _ string, _ peering.ClusterID, _ string, _ bool) (string, error) {
			close(begun)
			select {
			case <-end:
			case <-ctx.Done():
			}
			return "", errors.New("nobody answers")
		}
	})
	header := asAlice()
	header.Set("Content-Type", "application/json")
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, body, _ := a.rest(t, http.MethodPost, "/v1/peers:introduce", `{"endpoint": "peer.example:6443"`+strings.Repeat(" ", 200<<10)+"}", header)
		t.Logf("%d %s", code, body)
	}()
	select {
	case <-begun:
	case <-done:
		t.Fatal("it was not called")
	}
	if held := a.holds("127.0.0.1"); held != adminBodyTaken {
		t.Errorf("%d KiB are held", held>>10)
	}
	close(end)
	<-done
}
