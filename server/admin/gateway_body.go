package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// marshaler is JSON as the proto says. A watch is a message a line.
type marshaler struct{ *runtime.JSONPb }

// StreamContentType implements runtime.StreamContentType.
func (marshaler) StreamContentType(any) string { return streamType }

// NewDecoder implements runtime.Marshaler. It reads a body that is one JSON value
// and says which field of it is wrong.
func (m marshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		body, err := io.ReadAll(r)
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			return &bodyError{"", fmt.Sprintf("is larger than %d bytes", large.Limit)}
		}
		if err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		if body = bytes.Trim(body, jsonSpace); len(body) == 0 {
			return io.EOF // the library takes it for no body
		}
		if err := wellFormed(body); err != nil {
			return err
		}
		// A value of two bytes takes a hundred in memory.
		if bytes.Count(body, []byte(","))+bytes.Count(body, []byte("{"))+bytes.Count(body, []byte("[")) > wire.MaxParts {
			return &bodyError{"", fmt.Sprintf("has more than %d values", wire.MaxParts)}
		}
		if err := m.Unmarshal(body, v); err != nil {
			return misfit(body, describes(v), err)
		}
		return nil
	})
}

// jsonSpace is what JSON calls white space (RFC 8259, section 2).
const jsonSpace = " \t\r\n"

// bodyError says what is wrong with a body, and where. The library passes on no
// more of an error than its text, out of which violationOf makes the two again.
type bodyError struct{ field, message string }

func (e *bodyError) Error() string { return fmt.Sprintf("field %q: %s", e.field, e.message) }

// wellFormed says why a body is not exactly one JSON value.
func wellFormed(body []byte) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	var value json.RawMessage
	err := dec.Decode(&value)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		return &bodyError{"", fmt.Sprintf("is no JSON: something follows its end at byte %d", len(value))}
	}
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return &bodyError{"", fmt.Sprintf("is no JSON: %s at byte %d", syntax, syntax.Offset)}
	}
	return &bodyError{"", "is no JSON: it ends too early"}
}

// describes returns what kind of message a body is read into.
func describes(v any) protoreflect.MessageDescriptor {
	if t := reflect.TypeOf(v); t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Pointer {
		v = reflect.Zero(t.Elem()).Interface()
	}
	if m, ok := v.(proto.Message); ok {
		return m.ProtoReflect().Descriptor()
	}
	return nil
}

// where is how the JSON of protos says where something is wrong.
var where = regexp.MustCompile(`^proto:[\s\x{a0}]*(?:syntax error )?\(line (\d+):(\d+)\):[\s\x{a0}]*`)

// misfit says which field of a body does not fit its message, and how.
func misfit(body []byte, kind protoreflect.MessageDescriptor, err error) error {
	text := err.Error()
	at := where.FindStringSubmatch(text)
	if at == nil {
		return &bodyError{"", strings.TrimLeft(strings.TrimPrefix(text, "proto:"), " \u00a0")}
	}
	path, known := pathAt(body, kind, offsetOf(body, at[1], at[2]))
	if !known {
		return &bodyError{path, "there is no such field; see /openapi.json"}
	}
	return &bodyError{path, strings.TrimPrefix(text, at[0])}
}

// offsetOf is the byte at a line and column, both from 1, of which the latter
// counts characters.
func offsetOf(body []byte, line, column string) int {
	l, _ := strconv.Atoi(line) // digits, by the expression; a number beyond all bodies is past the end
	c, _ := strconv.Atoi(column)
	at := 0
	for ; l > 1 && at < len(body); l-- {
		next := bytes.IndexByte(body[at:], '\n')
		if next < 0 {
			return len(body)
		}
		at += next + 1
	}
	for ; c > 1 && at < len(body); c-- {
		_, n := utf8.DecodeRune(body[at:])
		at += n
	}
	return at
}

// pathAt is the path of the field, as in the proto, that has the byte at an
// offset of a JSON value, and whether the message has such a field.
func pathAt(body []byte, kind protoreflect.MessageDescriptor, at int) (path string, known bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	path, known, _ = walkTo(dec, int64(at), step{kind: kind, known: true})
	return path, known
}

// step is where a walk through a JSON value is.
type step struct {
	path string
	// kind is the message here; nil if here is none.
	kind protoreflect.MessageDescriptor
	// elements says that here is a map or list, whose elements are of kind.
	elements bool
	// known says that the message above has such a field.
	known bool
}

// member is the step to a member of an object.
func (s step) member(name string) step {
	if s.elements {
		return step{path: fmt.Sprintf("%s[%q]", s.path, name), kind: s.kind, known: true}
	}
	next := step{path: strings.TrimPrefix(s.path+"."+name, ".")}
	if s.kind == nil {
		next.known = s.known // what is free to have any member
		return next
	}
	field := s.kind.Fields().ByJSONName(name)
	if field == nil {
		field = s.kind.Fields().ByTextName(name)
	}
	if field == nil {
		return next
	}
	next.path, next.known = strings.TrimPrefix(s.path+"."+string(field.Name()), "."), true
	next.kind, next.elements = field.Message(), field.IsList()
	if field.IsMap() {
		next.kind, next.elements = field.MapValue().Message(), true
	}
	return next
}

// walkTo reads one value and stops at the token that ends behind an offset.
func walkTo(dec *json.Decoder, at int64, here step) (path string, known, found bool) {
	token, err := dec.Token()
	if err != nil || dec.InputOffset() > at {
		return here.path, here.known, true
	}
	for i := 0; dec.More(); i++ {
		var next step
		switch token {
		case json.Delim('{'):
			name, err := dec.Token()
			key, ok := name.(string)
			if err != nil || !ok {
				return here.path, here.known, true
			}
			if next = here.member(key); dec.InputOffset() > at {
				return next.path, next.known, true
			}
		case json.Delim('['):
			next = step{path: fmt.Sprintf("%s[%d]", here.path, i), kind: here.kind, known: here.known}
		default:
			return here.path, here.known, false // it had no members
		}
		if path, known, found = walkTo(dec, at, next); found {
			return path, known, true
		}
	}
	if token == json.Delim('{') || token == json.Delim('[') {
		_, _ = dec.Token() // its end
	}
	return here.path, here.known, dec.InputOffset() > at
}

// What the library says of a request that it cannot read.
var (
	bodyText  = regexp.MustCompile(`^field ("(?:[^"\\]|\\.)*"): (.*)$`)
	queryText = regexp.MustCompile(`^parsing (?:field|list|map|repeated field) "([^"]+)": (.*)$`)
	pathText  = regexp.MustCompile(`^type mismatch, parameter: (\S+), error: (.*)$`)
)

// violationOf is what is wrong with a request that never got to the server.
func violationOf(text string) peering.Violation {
	if m := bodyText.FindStringSubmatch(text); m != nil {
		if field, err := strconv.Unquote(m[1]); err == nil {
			return peering.Violation{Field: field, Message: m[2]}
		}
	}
	for _, known := range []*regexp.Regexp{queryText, pathText} {
		if m := known.FindStringSubmatch(text); m != nil {
			return peering.Violation{Field: m[1], Message: m[2]}
		}
	}
	return peering.Violation{Message: text}
}

// gatewayError answers with an error. One that the library made of a request that
// it could not read gets a reason and a field like all others; those of the server
// have them.
func gatewayError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	if st := status.Convert(err); st.Code() == codes.InvalidArgument && len(st.Details()) == 0 {
		v := violationOf(st.Message())
		v.Field, v.Message = peering.Text(v.Field, peering.MaxMessageLen), peering.Text(v.Message, peering.MaxMessageLen)
		if v.Field == "" {
			v.Field = "body"
		}
		err = wire.Status(&peering.Error{Reason: peering.ReasonRequestInvalid, Message: "the request is not valid", Violations: []peering.Violation{v}}).Err()
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// watchBegun is the metadata by which a watch says that its caller was let
// through and that from then on nothing is missed.
const watchBegun = "entente-watch-begun"

// beginStream answers a watch at once, also while there is nothing to tell. The
// library calls it without a message before the first one.
func beginStream(ctx context.Context, w http.ResponseWriter, message proto.Message) error {
	if message != nil {
		return nil
	}
	if md, ok := runtime.ServerMetadataFromContext(ctx); !ok || len(md.HeaderMD.Get(watchBegun)) == 0 {
		return nil // no watch, or one that was refused
	}
	w.Header().Set("Content-Type", streamType)
	w.WriteHeader(http.StatusOK)
	return http.NewResponseController(w).Flush() //nolint:wrapcheck // the writer's own error
}
