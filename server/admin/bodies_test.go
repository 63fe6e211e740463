package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/server/internal/middleware"
	"github.com/entente-dev/entente/server/internal/servertest"
)

// asNobody is the header of a user who may do nothing.
var asNobody = [2]string{"authorization", "Bearer " + nobodyToken}

// raw connects from an address of loopback.
func (a *adminTest) raw(t *testing.T, ip string) *servertest.H2 {
	t.Helper()
	c := a.tls()
	c.NextProtos = []string{"h2"}
	conn, err := tls.DialWithDialer(&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}, "tcp", a.address, c)
	if err != nil {
		t.Fatal(err)
	}
	r := servertest.Greet(t, conn)
	go r.Read()
	t.Cleanup(func() {
		_ = conn.Close()
		<-r.Closed
	})
	return r
}

// callers are a stranger, whom health alone is for, and a user who may do nothing.
var callers = map[string]struct {
	method string
	header [][2]string
}{
	"a stranger":           {healthpb.Health_Watch_FullMethodName, nil},
	"a user":               {ententev1.AdminService_WatchPeers_FullMethodName, [][2]string{asNobody}},
	"a user of reflection": {reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName, [][2]string{asNobody}},
}

func TestBodyInPiecesOfAByteKeepsOnlyItsBytes(t *testing.T) {
	for name, c := range callers {
		t.Run(name, func(t *testing.T) {
			a := newAdminTest(t)
			a.administered(t)
			before := servertest.Heap()
			r := a.raw(t, "127.0.0.1")
			const calls = 16
			var round []byte
			for i := range uint32(calls) {
				if r.CallWith(2*i+1, c.method, c.header...) != nil || r.Frame(servertest.FrameData, 0, 2*i+1, servertest.Message(SmallBody)) != nil {
					t.Fatal("the connection was cut off")
				}
				round = append(round, servertest.Frame(nil, servertest.FrameData, 0, 2*i+1, []byte{0})...)
			}
			for range 1500 {
				if _, err := r.Conn.Write(round); err != nil {
					break
				}
				time.Sleep(time.Millisecond) // or one read has several of them
			}
			if grown := servertest.Heap() - before; grown > 16<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			a.administered(t)
		})
	}
}

func TestBodyThatNeverEndsIsRefused(t *testing.T) {
	for name, c := range callers {
		t.Run(name, func(t *testing.T) {
			a := newAdminTest(t)
			a.administered(t)
			before := servertest.Heap()
			r := a.raw(t, "127.0.0.1")
			_ = r.Conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
			for i := range uint32(8) {
				if err := r.CallWith(2*i+1, c.method, c.header...); err != nil {
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
			if !waittest.Soon(func() bool { return r.Ends.Load()+r.Resets.Load() >= 8 }) {
				t.Error("they go on")
			}
			a.administered(t)
		})
	}
}

// bodyTimeout has bodies come in time.
func bodyTimeout(d time.Duration) func(*Config) {
	return func(c *Config) {
		c.pace = &pace{check: WatchCheck, grace: WatchGrace, write: middleware.WriteTimeout, body: d}
	}
}

func TestLargeBodiesAreFew(t *testing.T) {
	a := newAdminTestWith(t, bodyTimeout(time.Hour))
	r := a.raw(t, "127.0.0.1")
	const calls = MaxStreams / 2
	for i := range uint32(calls) {
		if r.CallWith(2*i+1, ententev1.AdminService_GetInfo_FullMethodName, asNobody) != nil ||
			r.Frame(servertest.FrameData, 0, 2*i+1, servertest.Message(MaxBody, make([]byte, 2*SmallBody)...)) != nil {
			t.Fatal("the connection was cut off")
		}
	}
	if !waittest.Soon(func() bool { return r.Ends.Load() == calls-UserLargeBodies }) {
		t.Errorf("%d of %d were refused", r.Ends.Load(), calls)
	}
	a.administered(t)
}

func TestBodyThatDoesNotComeIsRefused(t *testing.T) {
	a := newAdminTestWith(t, bodyTimeout(500*time.Millisecond))
	r := a.raw(t, "127.0.0.1")
	for i, message := range [][]byte{
		{},
		servertest.Message(MaxBody), servertest.Message(MaxBody, make([]byte, 2*SmallBody)...),
		servertest.Message(1, 0), // whole, but the call goes on
	} {
		stream := uint32(2*i + 1)
		if r.CallWith(stream, ententev1.AdminService_GetInfo_FullMethodName, asNobody) != nil || r.Frame(servertest.FrameData, 0, stream, message) != nil {
			t.Fatal("the connection was cut off")
		}
	}
	if !waittest.Soon(func() bool { return r.Ends.Load() == 4 }) {
		t.Errorf("%d of 4 ended", r.Ends.Load())
	}
}

func TestBodiesWithinTheLimitsPass(t *testing.T) {
	const timeout = 2 * time.Second
	a := newAdminTestWith(t, bodyTimeout(timeout))
	conn := a.dial(t, aliceToken)
	for size, ok := range map[int]bool{0: true, SmallBody: true, MaxBody - 64: true, MaxBody: false} {
		err := conn.Invoke(t.Context(), ententev1.AdminService_GetInfo_FullMethodName, servertest.UnknownField(size), new([]byte), grpc.ForceCodec(servertest.Bytes{}))
		if ok && err != nil || !ok && status.Code(err) != codes.InvalidArgument {
			t.Errorf("a message of %d bytes: %v", size, err)
		}
	}
	s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if i == 10 {
			time.Sleep(timeout + time.Second) // a stream may take its time
		}
		if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	_ = s.CloseSend()
	two := &http.Transport{TLSClientConfig: a.tls(), ForceAttemptHTTP2: true}
	one := &http.Transport{TLSClientConfig: a.tls(), TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	defer two.CloseIdleConnections()
	defer one.CloseIdleConnections()
	for version, client := range map[int]*http.Transport{2: two, 1: one} {
		for size, want := range map[int]int{0: http.StatusOK, 2: http.StatusOK, MaxBody: http.StatusOK, MaxBody + 1: http.StatusBadRequest, 4 * MaxBody: http.StatusBadRequest} {
			body := bytes.Repeat([]byte(" "), size)
			copy(body, "{}")
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+a.address+"/v1/tokens", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(req.Header, asAlice())
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			answer, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != want || resp.ProtoMajor != version {
				t.Errorf("%d bytes over HTTP/%d: %s %s", size, resp.ProtoMajor, resp.Status, answer)
			}
		}
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

func TestBodiesOfStrangersLockNoUserOut(t *testing.T) {
	a := newAdminTest(t)
	body := servertest.Message(MaxBody, make([]byte, 16<<10)...)
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		r := a.raw(t, ip)
		for i := range uint32(MaxStreams / 2) {
			if r.Call(2*i+1, ententev1.AdminService_GetInfo_FullMethodName) != nil || r.Frame(servertest.FrameData, 0, 2*i+1, body) != nil {
				t.Fatal("the connection was cut off")
			}
		}
		if !waittest.Soon(func() bool { return r.Ends.Load() == MaxStreams/2 }) {
			t.Errorf("%d calls from %s were refused", r.Ends.Load(), ip)
		}
	}
	a.administered(t)
}

func TestHealthWatchesLockNoCallerOut(t *testing.T) {
	a := newAdminTest(t)
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		c := healthpb.NewHealthClient(a.from(t, ip))
		for _, size := range []int{HealthName + 1, 250 << 10} {
			if _, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: strings.Repeat("a", size)}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("a name of %d bytes: %v", size, err)
			}
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
	}
	a.administered(t)
}

func TestHealthWatchEnds(t *testing.T) {
	c := &middleware.Call{Method: healthpb.Health_Watch_FullMethodName}
	err := healthOnly(middleware.NewLimiter(1, 1, 1, time.Now), 10*time.Millisecond)(context.WithValue(t.Context(), callerKey{}, &caller{}), c, func(ctx context.Context) error {
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
