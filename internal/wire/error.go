package wire

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/entente-dev/entente/peering"
)

// Domain is the domain of every google.rpc.ErrorInfo of Entente.
const Domain = "entente.dev"

// Code returns the gRPC code of a reason, and Internal for an unknown one.
func Code(r peering.Reason) codes.Code {
	switch r {
	case peering.ReasonRequestInvalid, peering.ReasonContractMismatch, peering.ReasonSignatureInvalid, peering.ReasonTokenMalformed,
		peering.ReasonCommitmentMismatch, peering.ReasonBundleInvalid:
		return codes.InvalidArgument
	case peering.ReasonRateLimited, peering.ReasonTooManyCalls, peering.ReasonCapacityExhausted, peering.ReasonTokensOutstanding,
		peering.ReasonIntroductionsPending, peering.ReasonReaderTooSlow:
		return codes.ResourceExhausted
	case peering.ReasonStopping, peering.ReasonHeartbeatLost, peering.ReasonPeerUnreachable, peering.ReasonKubernetes:
		return codes.Unavailable
	case peering.ReasonPeerNotTrusted, peering.ReasonTrustDenied, peering.ReasonTrustForgotten, peering.ReasonPolicyRefused, peering.ReasonCallerNotAllowed:
		return codes.PermissionDenied
	case peering.ReasonTokenInvalid, peering.ReasonGroupSecretMismatch, peering.ReasonCallerUnknown:
		return codes.Unauthenticated
	case peering.ReasonPeerIsSelf, peering.ReasonIntroductionUnknown, peering.ReasonProofUnknown, peering.ReasonPolicyPending, peering.ReasonPriceAboveCeiling,
		peering.ReasonAdvertisementExpired, peering.ReasonRevisionStale, peering.ReasonContractClosed, peering.ReasonNoEndpoint, peering.ReasonTokenExpired,
		peering.ReasonCodeMismatch, peering.ReasonRolloverTooSoon, peering.ReasonPeerIdentity, peering.ReasonPodsRunning, peering.ReasonMappingFixed,
		peering.ReasonProtocolUnsupported, peering.ReasonKubernetesRefused, peering.ReasonMetricsUnavailable:
		return codes.FailedPrecondition
	case peering.ReasonContractUnknown, peering.ReasonPodUnknown, peering.ReasonPeerUnknown, peering.ReasonNamespaceUnknown,
		peering.ReasonNamespaceNotOffloaded, peering.ReasonTokenUnknown, peering.ReasonPeeringUnknown, peering.ReasonRequestUnknown, peering.ReasonGroupUnknown:
		return codes.NotFound
	case peering.ReasonPeerNameTaken, peering.ReasonPeeringExists:
		return codes.AlreadyExists
	case peering.ReasonSessionSuperseded, peering.ReasonSyncSuperseded, peering.ReasonConflict:
		return codes.Aborted
	case peering.ReasonInternal, peering.ReasonResponseInvalid, peering.ReasonUnknown:
		return codes.Internal
	case peering.ReasonCanceled:
		return codes.Canceled
	case peering.ReasonDeadlineExceeded:
		return codes.DeadlineExceeded
	case peering.ReasonUnavailable:
		return codes.Unavailable
	case peering.ReasonUnimplemented:
		return codes.Unimplemented
	}
	return codes.Internal
}

// Status returns an error as the status that is sent.
func Status(e *peering.Error) *status.Status {
	st := status.New(Code(e.Reason), clip(e.Message, peering.MaxMessageLen))
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: string(e.Reason), Domain: Domain, Metadata: e.Metadata,
	}}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if len(e.Violations) > 0 {
		br := &errdetails.BadRequest{}
		for _, v := range e.Violations {
			br.FieldViolations = append(br.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: v.Field, Description: v.Message,
			})
		}
		details = append(details, br)
	}
	with, err := st.WithDetails(details...)
	if err != nil {
		return st
	}
	return with
}

// FromStatus returns the error of a call as an Error: with the reason that the other side sent,
// or else the name of the code as its reason. It returns nil for nil. Text from outside is cut
// and control characters are removed, so that it can be shown on a terminal.
func FromStatus(err error) *peering.Error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*peering.Error](err); ok {
		return own
	}
	// Not status.FromError: that makes the wrapping part of the message.
	var carrier interface{ GRPCStatus() *status.Status }
	st := status.FromContextError(err)
	if errors.As(err, &carrier) && carrier.GRPCStatus() != nil {
		st = carrier.GRPCStatus()
	}
	e := &peering.Error{Reason: codeReason(st.Code()), Message: peering.Text(st.Message(), peering.MaxMessageLen), Err: err}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() != Domain || !validReason(d.GetReason()) {
				continue
			}
			e.Reason = peering.Reason(d.GetReason())
			for k, v := range d.GetMetadata() {
				if len(e.Metadata) == peering.MaxErrorMetadata {
					break
				}
				if e.Metadata == nil {
					e.Metadata = make(map[string]string)
				}
				e.Metadata[peering.Text(k, peering.MaxReasonLen)] = peering.Text(v, peering.MaxMessageLen)
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = min(max(d.GetRetryDelay().AsDuration(), 0), peering.MaxRetryAfter)
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				if len(e.Violations) == peering.MaxErrorMetadata {
					break
				}
				e.Violations = append(e.Violations, peering.Violation{
					Field: peering.Text(v.GetField(), peering.MaxMessageLen), Message: peering.Text(v.GetDescription(), peering.MaxMessageLen),
				})
			}
		}
	}
	return e
}

// ReasonOf returns the reason of an error of a call, and "" for nil.
func ReasonOf(err error) peering.Reason {
	if err == nil {
		return ""
	}
	return FromStatus(err).Reason
}

// codeReason returns the name of a code in the form of a reason: DEADLINE_EXCEEDED.
func codeReason(c codes.Code) peering.Reason {
	var b strings.Builder
	for i, r := range c.String() {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return peering.Reason(b.String())
}

func validReason(s string) bool {
	if s == "" || len(s) > peering.MaxReasonLen || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' })
}

// clip cuts s to at most n bytes at a rune's border.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
