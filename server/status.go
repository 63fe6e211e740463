package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// statusOf is the one place where an error becomes what a caller sees. What it
// does not know is INTERNAL, with a message that tells nothing but where to
// look: call is the call's ID, which the log has too. What the API server said
// is told to administrators only.
func statusOf(err error, call string, admin bool) *status.Status {
	if err == nil {
		return nil
	}
	var api apierrors.APIStatus
	if admin && errors.As(err, &api) {
		return kubernetesError(err, call).GRPCStatus()
	}
	return toWire(err, call).GRPCStatus()
}

// toWire gives every error a reason. It is apart from statusOf for the few codes
// that gRPC itself gives, which have none.
func toWire(err error, call string) interface{ GRPCStatus() *status.Status } {
	var (
		own       *wire.Error
		signature *peering.SignatureError
		grant     *peering.GrantError
		rejected  *peering.RejectedError
		invalid   *protovalidate.ValidationError
	)
	switch {
	case errors.As(err, &own):
		if own.Reason == wire.ReasonInternal {
			return hidden(call)
		}
		return own
	case errors.As(err, &signature):
		return wire.Errorf(wire.ReasonSignatureInvalid, "%s", signature.Error())
	case errors.As(err, &grant):
		return grantError(grant)
	case errors.As(err, &rejected):
		return rejection(rejected)
	case isToken(err):
		return wire.Errorf(wire.ReasonTokenMalformed, "%s", err.Error())
	case errors.As(err, &invalid):
		return violations(invalid)
	case errors.Is(err, context.Canceled):
		return plain{status.New(codes.Canceled, "the caller went away")}
	case errors.Is(err, context.DeadlineExceeded):
		return plain{status.New(codes.DeadlineExceeded, "the call took too long")}
	}
	// A status that gRPC or a library made of itself: an unknown method, a message
	// that cannot be read. It has a code other than Unknown.
	if st, ok := status.FromError(err); ok && st.Code() != codes.Unknown && st.Code() != codes.Internal {
		return plain{st}
	}
	return hidden(call)
}

type plain struct{ st *status.Status }

func (p plain) GRPCStatus() *status.Status { return p.st }

func hidden(call string) *wire.Error {
	return wire.Errorf(wire.ReasonInternal, "internal error; the agent's log has more under call %s", call)
}

func isToken(err error) bool {
	return errors.Is(err, peering.ErrTokenMalformed) || errors.Is(err, peering.ErrTokenTruncated) ||
		errors.Is(err, peering.ErrTokenChecksum) || errors.Is(err, peering.ErrTokenVersion)
}

func grantError(e *peering.GrantError) *wire.Error {
	out := &wire.Error{Message: e.Message}
	switch e.Reason {
	case peering.GrantPolicyRefused:
		out.Reason = wire.ReasonPolicyRefused
	case peering.GrantPending:
		out.Reason, out.RetryAfter = wire.ReasonPolicyPending, retryPending
	case peering.GrantPrice:
		out.Reason = wire.ReasonPriceAboveCeiling
	case peering.GrantCapacityExhausted:
		out.Reason, out.RetryAfter = wire.ReasonCapacityExhausted, retryCapacity
	case peering.GrantInvalid:
		out.Reason = wire.ReasonRequestInvalid
	default:
		out.Reason = wire.ReasonRequestInvalid
	}
	if e.Resource != "" {
		out.Metadata = map[string]string{"resource": e.Resource}
	}
	return out
}

func rejection(e *peering.RejectedError) *wire.Error {
	reason := wire.ReasonContractMismatch
	switch e.Why {
	case peering.RejectedStale:
		reason = wire.ReasonRevisionStale
	case peering.RejectedClosed:
		reason = wire.ReasonContractClosed
	case peering.RejectedMismatch, peering.RejectedState, peering.RejectedInvalid:
	}
	return wire.Errorf(reason, "%s", e.Error())
}

func violations(e *protovalidate.ValidationError) *wire.Error {
	out := &wire.Error{Reason: wire.ReasonRequestInvalid, Message: "the request is not valid"}
	for _, v := range e.Violations {
		if len(out.Violations) == wire.MaxErrorMetadata {
			break
		}
		out.Violations = append(out.Violations, wire.Violation{
			Field:   wire.Text(protovalidate.FieldPathString(v.Proto.GetField()), wire.MaxMessageLen),
			Message: wire.Text(v.Proto.GetMessage(), wire.MaxMessageLen),
		})
	}
	return out
}

// kubernetesError tells an administrator what the API server said.
func kubernetesError(err error, call string) *wire.Error {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return &wire.Error{Reason: wire.ReasonConflict, Message: "something else changed the object at the same time; try again", RetryAfter: retryConflict}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		out := &wire.Error{Reason: wire.ReasonRequestInvalid, Message: "the API server refuses the object"}
		var api apierrors.APIStatus
		if errors.As(err, &api) && api.Status().Details != nil {
			for _, c := range api.Status().Details.Causes {
				if len(out.Violations) == wire.MaxErrorMetadata {
					break
				}
				out.Violations = append(out.Violations, wire.Violation{Field: c.Field, Message: wire.Text(c.Message, wire.MaxMessageLen)})
			}
		}
		return out
	case apierrors.IsForbidden(err):
		return wire.Errorf(wire.ReasonKubernetesRefused, "a rule of this cluster forbids it: %s", denial(err))
	case apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err):
		return &wire.Error{Reason: wire.ReasonKubernetes, Message: fmt.Sprintf("the cluster's API server is not able to answer: %s",
			wire.Text(string(apierrors.ReasonForError(err)), wire.MaxReasonLen)), RetryAfter: retryKubernetes}
	}
	return hidden(call)
}

// denial is why the API server forbids something: of an admission policy its message,
// without the names of the object, the policy and its binding.
func denial(err error) string {
	text := err.Error()
	var api apierrors.APIStatus
	if errors.As(err, &api) {
		text = api.Status().Message
	}
	if _, why, ok := strings.Cut(text, " denied request: "); ok {
		text = why
	}
	return wire.Text(text, wire.MaxMessageLen/2)
}
