package middleware

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
	"github.com/entente-dev/entente/peering/jointoken"
)

// StatusOf turns an error into the status that a caller sees, and nothing else does. An unknown
// error becomes INTERNAL, with a message that only has call, the call's ID, by which the error
// can be found in the log. Only administrators get the message of an error of the API server.
func StatusOf(err error, call string, admin bool) *status.Status {
	if err == nil {
		return nil
	}
	var api apierrors.APIStatus
	if admin && errors.As(err, &api) {
		return wire.Status(kubernetesError(err, call))
	}
	var (
		own     *peering.Error
		invalid *protovalidate.ValidationError
	)
	switch {
	case errors.As(err, &own) && own.Reason != peering.ReasonInternal:
		return wire.Status(own)
	case errors.As(err, &own):
		return wire.Status(hidden(call))
	case isToken(err):
		return wire.Status(peering.Errorf(peering.ReasonTokenMalformed, "%s", err.Error()))
	case errors.As(err, &invalid):
		return wire.Status(violations(invalid))
	case errors.Is(err, context.Canceled):
		return status.New(codes.Canceled, "the caller went away")
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, "the call took too long")
	}
	// A status of gRPC or a library itself: an unknown method, a message that cannot be read. It
	// has a code other than Unknown, and no reason.
	if st, ok := status.FromError(err); ok && st.Code() != codes.Unknown && st.Code() != codes.Internal {
		return st
	}
	return wire.Status(hidden(call))
}

func hidden(call string) *peering.Error {
	return peering.Errorf(peering.ReasonInternal, "internal error; the agent's log has more under call %s", call)
}

func isToken(err error) bool {
	return errors.Is(err, jointoken.ErrMalformed) || errors.Is(err, jointoken.ErrTruncated) ||
		errors.Is(err, jointoken.ErrChecksum) || errors.Is(err, jointoken.ErrVersion)
}

func violations(e *protovalidate.ValidationError) *peering.Error {
	out := &peering.Error{Reason: peering.ReasonRequestInvalid, Message: "the request is not valid"}
	for _, v := range e.Violations {
		if len(out.Violations) == peering.MaxErrorMetadata {
			break
		}
		out.Violations = append(out.Violations, peering.Violation{
			Field:   peering.Text(protovalidate.FieldPathString(v.Proto.GetField()), peering.MaxMessageLen),
			Message: peering.Text(v.Proto.GetMessage(), peering.MaxMessageLen),
		})
	}
	return out
}

// BadField is the error that a field of a request is not valid.
func BadField(field, format string, args ...any) error {
	return &peering.Error{
		Reason: peering.ReasonRequestInvalid, Message: "the request is not valid",
		Violations: []peering.Violation{{Field: field, Message: fmt.Sprintf(format, args...)}},
	}
}

// kubernetesError returns an error of the API server as an administrator sees it.
func kubernetesError(err error, call string) *peering.Error {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return &peering.Error{Reason: peering.ReasonConflict, Message: "something else changed the object at the same time; try again", RetryAfter: RetryConflict}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		out := &peering.Error{Reason: peering.ReasonRequestInvalid, Message: "the API server refuses the object"}
		var api apierrors.APIStatus
		if errors.As(err, &api) && api.Status().Details != nil {
			for _, c := range api.Status().Details.Causes {
				if len(out.Violations) == peering.MaxErrorMetadata {
					break
				}
				out.Violations = append(out.Violations, peering.Violation{Field: c.Field, Message: peering.Text(c.Message, peering.MaxMessageLen)})
			}
		}
		return out
	case apierrors.IsForbidden(err):
		return peering.Errorf(peering.ReasonKubernetesRefused, "a rule of this cluster forbids it: %s", denial(err))
	case apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err):
		return &peering.Error{Reason: peering.ReasonKubernetes, Message: fmt.Sprintf("the cluster's API server is not available: %s",
			peering.Text(string(apierrors.ReasonForError(err)), peering.MaxReasonLen)), RetryAfter: RetryKubernetes}
	}
	return hidden(call)
}

// denial returns why the API server forbids something: the message of an admission policy,
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
	return peering.Text(text, peering.MaxMessageLen/2)
}
