package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// Call is one call, unary or stream, as the middleware sees it.
type Call struct {
	// Method is the full name: /entente.v1.TrustService/Join.
	Method string
	// Request and response are the messages of a unary call, nil for a stream.
	Request, response any
	// ID names the call in the log and in hidden errors.
	ID string
	// Who is the caller, once known.
	Who string
	// Check validates each incoming message of a stream.
	Check func(message any) error
}

// Func wraps a call: it returns an error instead of calling next, or handles the error that next
// returned. The same Func serves unary calls and streams, so that neither kind can be left out.
type Func func(ctx context.Context, c *Call, next func(context.Context) error) error

// Options makes gRPC run the middleware, the first one outermost, around every
// call: also those of health, reflection and unknown methods.
func Options(log *slog.Logger, mw ...Func) []grpc.ServerOption {
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		var resp any
		c := &Call{Method: info.FullMethod, Request: req}
		err := run(ctx, c, mw, func(ctx context.Context) error {
			var err error
			resp, err = handler(ctx, req)
			c.response = resp
			return err
		})
		if err != nil {
			return nil, err
		}
		return resp, nil
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		c := &Call{Method: info.FullMethod}
		return run(ss.Context(), c, mw, func(ctx context.Context) error {
			return handler(srv, &checkedStream{ServerStream: ss, ctx: ctx, check: c.Check})
		})
	}
	return []grpc.ServerOption{grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream), requests(log)}
}

func run(ctx context.Context, c *Call, mw []Func, last func(context.Context) error) error {
	if len(mw) == 0 {
		return last(ctx)
	}
	return mw[0](ctx, c, func(ctx context.Context) error { return run(ctx, c, mw[1:], last) })
}

// checkedStream is a stream with the context and the check of its call.
type checkedStream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // grpc.ServerStream hands out its context by a method
	check func(any) error
}

func (s *checkedStream) Context() context.Context { return s.ctx }

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if s.check == nil {
		return nil
	}
	return OnFreshStack("the check of a message", func() error { return s.check(m) })
}

// Audited gives each call an ID, turns its error into a status, and logs one line for a call that
// changes something or was refused. It is the outermost middleware.
func Audited(log *slog.Logger, admin bool, mutates func(method string) bool) Func {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		c.ID = callID(ctx)
		_ = grpc.SetHeader(ctx, metadata.Pairs(CallIDHeader, c.ID))
		start := time.Now()
		err := next(ctx)
		st := StatusOf(err, c.ID, admin)
		code := codes.OK
		if st != nil {
			code = st.Code()
		}
		level := slog.LevelDebug
		switch {
		case code == codes.Internal:
			level = slog.LevelError
		case code == codes.Canceled:
		case wire.ReasonOf(err) == peering.ReasonRateLimited || wire.ReasonOf(err) == peering.ReasonTooManyCalls:
			// A flood must not become a flood of log lines.
		case mutates(c.Method), code == codes.PermissionDenied, code == codes.Unauthenticated:
			level = slog.LevelInfo
		}
		if log.Enabled(ctx, level) {
			log.LogAttrs(ctx, level, "call", auditAttrs(ctx, c, st, err, time.Since(start))...)
		}
		if st != nil {
			return st.Err()
		}
		return nil
	}
}

func auditAttrs(ctx context.Context, c *Call, st *status.Status, err error, took time.Duration) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("call", c.ID),
		slog.String("method", strings.TrimPrefix(c.Method, "/")),
		slog.String("who", c.Who),
		slog.String("address", RemoteAddress(ctx)),
		slog.String("code", st.Code().String()),
		slog.Duration("took", took.Round(time.Microsecond)),
	}
	// What it was about: names only, never a token, key or payload.
	about := subjects(c.response)
	maps.Copy(about, subjects(c.Request))
	for _, key := range slices.Sorted(maps.Keys(about)) {
		attrs = append(attrs, slog.String(key, about[key]))
	}
	if err != nil {
		// The reason that the caller sees, and the whole error behind it.
		attrs = append(attrs, slog.String("reason", string(wire.ReasonOf(st.Err()))), slog.String("err", peering.Text(jointoken.Redact(err.Error()), peering.MaxMessageLen)))
	}
	return attrs
}

// subjects returns the names in a request or response that say what it is about,
// and how it was meant.
func subjects(message any) map[string]string {
	out := make(map[string]string)
	m, ok := message.(proto.Message)
	if !ok {
		return out
	}
	for _, about := range []struct{ path, key string }{
		{"peer", "peer"},
		{"peer.name", "peer"},
		{"peer.cluster_id", "cluster"},
		{"name", "name"},
		{"peering.name", "name"},
		{"peering_request", "peering"},
		{"namespace", "namespace"},
		{"contract_id", "contract"},
		{"token_id", "token"},
		{"endpoint", "endpoint"},
		{"cluster_id", "cluster"},
		{"parameters.cluster_id", "cluster"},
		{"request_id", "request"},
		{"now", "now"},
		{"forget", "forget"},
		{"approve", "approve"},
		{"validate_only", "validateOnly"},
	} {
		if value := fieldText(m.ProtoReflect(), about.path); value != "" {
			out[about.key] = peering.Text(jointoken.Redact(value), 260)
		}
	}
	return out
}

// fieldText is the string in a field, or "true" where it is a flag that is set. It is empty
// where a message has no such field.
func fieldText(m protoreflect.Message, path string) string {
	name, rest, nested := strings.Cut(path, ".")
	field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if field == nil || field.Cardinality() == protoreflect.Repeated || !m.Has(field) {
		return ""
	}
	value := m.Get(field).Interface()
	switch value := value.(type) {
	case protoreflect.Message:
		if nested {
			return fieldText(value, rest)
		}
	case string:
		if !nested {
			return value
		}
	case bool:
		return strconv.FormatBool(value)
	}
	return ""
}

// CallIDHeader is the metadata that has a call's ID.
const CallIDHeader = "x-request-id"

// callID returns the caller's ID if it sent one that can be logged, so that one ID goes from the
// CLI to the peer, and generates one otherwise.
func callID(ctx context.Context) string {
	if ids := metadata.ValueFromIncomingContext(ctx, CallIDHeader); len(ids) == 1 && ValidCallID(ids[0]) {
		return ids[0]
	}
	return uuid.NewString()
}

// ValidCallID reports whether a caller's ID for its call can be logged.
func ValidCallID(id string) bool {
	return id != "" && len(id) <= 64 &&
		strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

// Recovered turns a panic into an error of its call.
func Recovered(ctx context.Context, c *Call, next func(context.Context) error) (err error) {
	defer recoverTo(&err, c.Method)
	return next(ctx)
}

// recoverTo turns a panic into an error. It has to be deferred.
func recoverTo(err *error, where string) {
	if p := recover(); p != nil {
		*err = &peering.Error{Reason: peering.ReasonInternal, Message: fmt.Sprintf("panic in %s: %v\n%s", where, p, debug.Stack())}
	}
}

// Validated checks each message against the constraints of the proto.
func Validated(opts ...protovalidate.ValidationOption) (Func, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("compile validation rules: %w", err)
	}
	check := func(message any) error {
		m, ok := message.(proto.Message)
		if !ok {
			return errors.New("message is not a protobuf message")
		}
		if err := refused(m); err != nil {
			return err
		}
		return v.Validate(m, opts...)
	}
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		c.Check = check
		if c.Request != nil {
			if err := check(c.Request); err != nil {
				return err
			}
		}
		return next(ctx)
	}, nil
}

// Deadlined bounds unary calls; streams live as long as both sides want.
func Deadlined(d time.Duration) Func {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		if c.Request == nil {
			return next(ctx)
		}
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return next(ctx)
	}
}

// Limited admits a call by its key, which an earlier middleware may have set.
func Limited(l *Limiter, key func(context.Context, *Call) (string, bool)) Func {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		k, ok := key(ctx, c)
		if !ok {
			return next(ctx)
		}
		leave, err := l.Enter(k)
		if err != nil {
			return err
		}
		defer leave()
		return next(ctx)
	}
}

// RemoteAddress is where a call came from.
func RemoteAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	return p.Addr.String()
}

// OnFreshStack calls f in a goroutine of its own and waits for it; a panic becomes an error. The
// stack of a goroutine grows to what its deepest call needs, and hardly shrinks: the stack of a
// stream's goroutine, which mostly waits, stays small if deep calls run elsewhere.
func OnFreshStack(where string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }()
		defer recoverTo(&err, where)
		err = f()
	}()
	return <-done
}

// IgnoreUnknownValues is a protovalidate filter for messages of later revisions. It skips the
// rules of an enum whose value is unknown here and of a oneof that is set to a field unknown
// here. Code that has to know what such a value means refuses it with
// peering.ReasonProtocolUnsupported.
func IgnoreUnknownValues(m protoreflect.Message, d protoreflect.Descriptor) bool {
	switch d := d.(type) {
	case protoreflect.FieldDescriptor:
		if d.Enum() == nil || d.IsList() || d.IsMap() || !m.Has(d) {
			return true
		}
		return d.Enum().Values().ByNumber(m.Get(d).Enum()) != nil
	case protoreflect.OneofDescriptor:
		return len(m.GetUnknown()) == 0
	}
	return true
}

// SetServing sets the health of every service and of the whole ("").
func SetServing(s *grpc.Server, h *health.Server, status healthpb.HealthCheckResponse_ServingStatus) {
	h.SetServingStatus("", status)
	for name := range s.GetServiceInfo() {
		h.SetServingStatus(name, status)
	}
}
