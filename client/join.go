package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// JoinConfig configures Join.
type JoinConfig struct {
	// Token is the invitation. Required.
	Token jointoken.Token
	// Source is this cluster's identity. Required.
	Source *identity.Source
	// Self is this cluster's own ClusterInfo. Required.
	Self identity.ClusterInfo
	// Dial opens TCP connections; nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Join redeems a token: it dials the token's endpoints in order, verifies that the cluster there
// has the key that the token pins, and asks to be trusted. It returns the verified issuer, to be
// trusted in turn. Repeating it with the same token is safe. If too many clusters join at once,
// it tries again for joinPatience, or until ctx ends: clusters behind one address share the
// issuer's limits. If connections are refused it does for joinStartPatience: an agent that was just
// installed is ready before every node forwards to it.
//
// Errors are *peering.Error, with the reasons PEER_UNREACHABLE,
// PEER_IDENTITY_MISMATCH, TOKEN_INVALID, TOKEN_EXPIRED, PEER_IS_SELF, or another one of the
// issuer.
func Join(ctx context.Context, cfg JoinConfig) (identity.ClusterInfo, error) {
	if cfg.Source == nil || len(cfg.Token.Endpoints) == 0 || len(cfg.Self.Roots) == 0 {
		return identity.ClusterInfo{}, errors.New("join: Token, Source and Self are required")
	}
	if cfg.Token.Issuer == cfg.Source.ID() {
		return identity.ClusterInfo{}, &peering.Error{Reason: peering.ReasonPeerIsSelf, Message: "the token is this cluster's own: redeem it in the other cluster"}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	began := time.Now()
	for pause := joinPauseMin; ; pause = min(2*pause, joinPauseMax) {
		info, again, err := joinOnce(ctx, cfg)
		if err == nil {
			return info, nil
		}
		// The random part keeps clusters that were refused at once from coming back at once.
		wait := again.after + time.Duration(rand.Int64N(int64(pause)))
		if ctx.Err() != nil || time.Since(began)+wait > again.patience {
			return identity.ClusterInfo{}, err
		}
		if !notify.Pause(ctx, wait) {
			return identity.ClusterInfo{}, err
		}
	}
}

// retry is after how long an issuer may accept a join, and for how long to try. The zero value means that no issuer
// will.
type retry struct{ after, patience time.Duration }

// joinOnce tries each endpoint once.
func joinOnce(ctx context.Context, cfg JoinConfig) (info identity.ClusterInfo, again retry, err error) {
	var failures []error
	for _, endpoint := range cfg.Token.Endpoints {
		info, err := joinAt(ctx, cfg, endpoint)
		switch {
		case err == nil:
			return info, retry{}, nil
		case ctx.Err() != nil:
			return identity.ClusterInfo{}, retry{}, fmt.Errorf("join by %s: %w", endpoint, context.Cause(ctx))
		case !tryNext(err):
			return identity.ClusterInfo{}, retry{}, err
		}
		if r := retryOf(err); r.patience > again.patience || r.patience == again.patience && r.after < again.after {
			again = r
		}
		failures = append(failures, err)
	}
	return identity.ClusterInfo{}, again, noEndpoint(failures)
}

// retryOf returns whether an issuer may have had too many calls at once, or begins to serve. An issuer without room
// for a connection accepts it and closes it.
func retryOf(err error) retry {
	e, ok := errors.AsType[*peering.Error](err)
	if !ok {
		return retry{}
	}
	switch e.Reason {
	case peering.ReasonStopping, peering.ReasonRateLimited, peering.ReasonTooManyCalls:
		return retry{e.RetryAfter, joinPatience}
	default:
	}
	for _, hungUp := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(e.Err, hungUp) {
			return retry{0, joinPatience}
		}
	}
	switch {
	case e.Reason != peering.ReasonPeerUnreachable:
		return retry{}
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return retry{0, joinStartPatience}
	case status.Code(e.Err) == codes.Unavailable:
		return retry{0, joinPatience}
	}
	return retry{}
}

// tryNext reports whether to try another endpoint: if this one did not respond, belongs to
// another cluster, or cannot serve the call now.
func tryNext(err error) bool {
	switch wire.ReasonOf(err) {
	case peering.ReasonPeerUnreachable, peering.ReasonPeerIdentity, peering.ReasonStopping, peering.ReasonRateLimited, peering.ReasonTooManyCalls,
		peering.ReasonUnavailable, peering.ReasonDeadlineExceeded:
		return true
	default:
		return false
	}
}

// noEndpoint makes one error of those of all endpoints.
func noEndpoint(failures []error) error {
	out := &peering.Error{Reason: peering.ReasonPeerUnreachable, Err: errors.Join(failures...)}
	texts := make([]string, 0, len(failures))
	for _, err := range failures {
		if wire.ReasonOf(err) == peering.ReasonPeerIdentity {
			out.Reason = peering.ReasonPeerIdentity
		}
		texts = append(texts, err.Error())
	}
	out.Message = strings.Join(texts, "; ")
	return out
}

// joinAt redeems the token at one endpoint.
func joinAt(ctx context.Context, cfg JoinConfig, endpoint string) (identity.ClusterInfo, error) {
	conn, _, err := stranger{source: cfg.Source, dial: cfg.Dial, expect: cfg.Token.Issuer, by: "the token was made by"}.call(ctx, endpoint)
	if err != nil {
		return identity.ClusterInfo{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, joinCallTimeout)
	defer cancel()
	secret := [32]byte(cfg.Token.Secret)
	resp, err := ententev1.NewTrustServiceClient(conn).Join(ctx, &ententev1.JoinRequest{
		TokenId: cfg.Token.ID, Secret: secret[:], Cluster: wire.ClusterInfoTo(cfg.Self),
	})
	if err != nil {
		return identity.ClusterInfo{}, joinRefused(err, cfg, endpoint)
	}
	info, err := wire.ClusterInfoFrom(resp.GetCluster(), cfg.Token.Issuer)
	if err != nil {
		return identity.ClusterInfo{}, fmt.Errorf("%s: %w", endpoint, wire.Response(err))
	}
	return info, nil
}

// stranger calls clusters that do not trust this one.
type stranger struct {
	source *identity.Source
	// dial opens TCP connections; nil means net.Dialer.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// expect is the cluster that has to be there; empty accepts any that proves an ID.
	expect peering.ClusterID
	// by is where expect is from, as in an error: "the token was made by".
	by string
}

// strangerConn is a connection to a cluster that need not trust this one.
type strangerConn struct {
	*grpc.ClientConn
	// below is closed too: gRPC only owns it after the first call.
	below *tls.Conn
}

// Close ends the connection.
func (c strangerConn) Close() {
	_ = c.ClientConn.Close()
	_ = c.below.Close()
}

// call connects to an endpoint and returns the cluster there, with a connection to it. It does
// the handshake itself, so that errors keep their types, which they lose in gRPC.
func (s stranger) call(ctx context.Context, endpoint string) (strangerConn, peering.ClusterID, error) {
	dialCtx, cancel := context.WithTimeout(ctx, joinDialTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return strangerConn{}, "", peering.Errorf(peering.ReasonPeerUnreachable, "endpoint %s is not host:port", peering.Text(endpoint, peering.MaxEndpointLen))
	}
	if s.dial == nil {
		s.dial = (&net.Dialer{}).DialContext
	}
	raw, err := s.dial(dialCtx, "tcp", endpoint)
	if err != nil {
		return strangerConn{}, "", &peering.Error{
			Reason: peering.ReasonPeerUnreachable, Err: err,
			Message: fmt.Sprintf("cannot connect to %s: %s; check that the address is right and that TCP may pass", endpoint, dialProblem(err)),
		}
	}
	id := s.expect
	config := s.source.ClientTLS(s.expect, nil, host, "h2")
	if s.expect == "" {
		config.VerifyConnection = func(cs tls.ConnectionState) error {
			info, err := identity.VerifyPeer(cs.PeerCertificates, nil, time.Now())
			id = info.ID
			return err
		}
	}
	secured := tls.Client(raw, config)
	if err := secured.HandshakeContext(dialCtx); err != nil {
		_ = raw.Close()
		return strangerConn{}, "", s.handshakeFailed(err, endpoint)
	}
	conn, err := overConn(secured, endpoint)
	if err != nil {
		_ = secured.Close()
		return strangerConn{}, "", err
	}
	return strangerConn{ClientConn: conn, below: secured}, id, nil
}

func (s stranger) handshakeFailed(err error, endpoint string) error {
	e := &peering.Error{Reason: peering.ReasonPeerIdentity, Err: err}
	var pin *identity.PinError
	var clock *identity.TimeError
	switch {
	case errors.As(err, &pin) && s.expect != "":
		e.Message = fmt.Sprintf("at %s answers cluster %s, but %s %s: the address leads elsewhere, or the connection was intercepted", endpoint, pin.Got, s.by, s.expect)
	case errors.As(err, &clock):
		e.Message = fmt.Sprintf("%s: %s", endpoint, clock.Error())
	case errors.Is(err, context.DeadlineExceeded):
		e.Reason, e.Message = peering.ReasonPeerUnreachable, endpoint+" accepts connections but does not answer; check what listens there"
	default:
		e.Message = fmt.Sprintf("what answers at %s is not an Entente agent: %s", endpoint, peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return e
}

func dialProblem(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %s", joinDialTimeout)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err.Error()
	}
	return err.Error()
}

// joinRefused returns the issuer's refusal with what to do about it.
func joinRefused(err error, cfg JoinConfig, endpoint string) error {
	e := *wire.FromStatus(err)
	e.Err = err
	switch {
	case e.Reason == peering.ReasonTokenInvalid && e.Metadata[peering.TokenCause] == peering.TokenCauseExpired:
		e.Reason = peering.ReasonTokenExpired
		e.Message = fmt.Sprintf("the token expired at %s%s; make another with `entente token create`",
			cfg.Token.Expires.Format(time.RFC3339), skew(e.Metadata[peering.TokenClock], cfg.Now()))
	case e.Reason == peering.ReasonTokenInvalid && e.Metadata[peering.TokenCause] == peering.TokenCauseUsed:
		e.Message = "the token was redeemed by another cluster; make another with `entente token create`, and if you do not know that cluster, end its trust"
	case e.Reason == peering.ReasonTokenInvalid:
		e.Message = "the issuer does not take the token: it was used, revoked or has expired; make another with `entente token create`"
		if now := cfg.Now(); now.After(cfg.Token.Expires) {
			e.Reason = peering.ReasonTokenExpired
			e.Message = fmt.Sprintf("the token expired at %s; make another with `entente token create`", cfg.Token.Expires.Format(time.RFC3339))
		}
	default:
		e = *callFailed(err, endpoint)
	}
	return &e
}

// callFailed returns the error of a call with a reason, also for a connection that broke or is
// silent.
func callFailed(err error, endpoint string) *peering.Error {
	e := *wire.FromStatus(err)
	e.Err = err
	switch {
	case status.Code(err) == codes.Unavailable && strings.Contains(e.Message, "tls: bad certificate"):
		// In TLS 1.3 a client gets this alert only when it reads.
		e.Reason = peering.ReasonPeerIdentity
		e.Message = fmt.Sprintf("%s did not accept this cluster's certificate; this cluster's clock says %s: if the other one's differs much, set the clocks right",
			endpoint, time.Now().UTC().Format(time.RFC3339))
	case status.Code(err) == codes.Unavailable && e.Reason == peering.ReasonUnavailable:
		e.Reason = peering.ReasonPeerUnreachable
		e.Message = fmt.Sprintf("the connection to %s broke: %s", endpoint, e.Message)
	case status.Code(err) == codes.DeadlineExceeded:
		e.Message = fmt.Sprintf("%s did not answer within %s", endpoint, joinCallTimeout)
	}
	return &e
}

// skew says by how much the clocks differ, if it is enough to matter.
func skew(issuer string, now time.Time) string {
	at, err := time.Parse(time.RFC3339, issuer)
	if err != nil {
		return ""
	}
	d := now.Sub(at).Round(time.Second)
	if d.Abs() < skewReported {
		return ""
	}
	if d < 0 {
		return fmt.Sprintf(" by the issuer's clock, which is %s ahead of this cluster's: set the clocks right", -d)
	}
	return fmt.Sprintf(" by the issuer's clock, which is %s behind this cluster's: set the clocks right", d)
}

// overConn is gRPC over a connection that is already open and secured.
func overConn(c net.Conn, endpoint string) (*grpc.ClientConn, error) {
	var once sync.Once
	conn, err := grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			var out net.Conn
			once.Do(func() { out = c })
			if out == nil {
				return nil, errors.New("the connection was lost")
			}
			return out, nil
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(joinMaxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", endpoint, err)
	}
	return conn, nil
}
