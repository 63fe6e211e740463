package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// marshaler reads and writes JSON as the proto defines it. A watch has one message a line.
type marshaler struct{ *runtime.JSONPb }

func (marshaler) StreamContentType(any) string { return streamType }

// NewDecoder implements runtime.Marshaler. Its decoder reads a body that is one JSON value, and
// its error names the field that is wrong.
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
			return misfit(body, v)
		}
		return nil
	})
}

// jsonSpace is what JSON calls white space (RFC 8259, section 2).
const jsonSpace = " \t\r\n"

// bodyError is what is wrong with a body, and where. The library passes on only the text of an
// error, so the text is JSON, which gatewayError reads.
type bodyError peering.Violation

func (e *bodyError) Error() string {
	text, _ := json.Marshal(e) // two strings
	return string(text)
}

// wellFormed returns an error unless a body is exactly one JSON value.
func wellFormed(body []byte) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	var value json.RawMessage
	err := dec.Decode(&value)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		return &bodyError{"", fmt.Sprintf("is not JSON: something follows its end at byte %d", len(value))}
	}
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return &bodyError{"", fmt.Sprintf("is not JSON: %s at byte %d", syntax, syntax.Offset)}
	}
	return &bodyError{"", "is not JSON: it ends too early"}
}

// messageOf returns an empty message of the type that a body is read into, or nil if it is not
// read into a message.
func messageOf(v any) protoreflect.Message {
	if t := reflect.TypeOf(v); t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Pointer {
		v = reflect.Zero(t.Elem()).Interface()
	}
	if m, ok := v.(proto.Message); ok {
		return m.ProtoReflect()
	}
	return nil
}

// misfit returns which field of a body does not fit its message, and how. The library's errors
// have that only as prose, so the fields are read one by one.
func misfit(body []byte, v any) *bodyError {
	if m := messageOf(v); m != nil {
		return misfitOf(body, m, "")
	}
	return &bodyError{"", "is not what the method takes"}
}

func misfitOf(value []byte, m protoreflect.Message, path string) *bodyError {
	if value[0] != '{' {
		return &bodyError{path, "is not an object"}
	}
	seen := map[protoreflect.FieldDescriptor]bool{}
	for _, member := range members(value) {
		field := fieldOf(m, member.name)
		if field == nil {
			return &bodyError{strings.TrimPrefix(path+"."+member.name, "."), "there is no such field; see /openapi.json"}
		}
		at := strings.TrimPrefix(path+"."+string(field.Name()), ".")
		if seen[field] {
			return &bodyError{at, "duplicate field"}
		}
		seen[field] = true
		fits := func(value []byte) bool {
			one := fmt.Appendf(nil, "{%q:%s}", field.JSONName(), value)
			return protojson.Unmarshal(one, m.New().Interface()) == nil
		}
		if fits(member.value) {
			continue
		}
		wrong, inner := member.value, field.Message()
		switch {
		case field.IsList() && wrong[0] == '[':
			for i, element := range elements(wrong) {
				if !fits(slices.Concat([]byte("["), element, []byte("]"))) {
					wrong, at = element, fmt.Sprintf("%s[%d]", at, i)
					break
				}
			}
		case field.IsMap() && wrong[0] == '{':
			inner = field.MapValue().Message()
			for _, entry := range members(wrong) {
				if !fits(fmt.Appendf(nil, "{%q:%s}", entry.name, entry.value)) {
					wrong, at = entry.value, fmt.Sprintf("%s[%q]", at, entry.name)
					break
				}
			}
		}
		if inner != nil && inner.ParentFile().Package() != "google.protobuf" && !inner.IsMapEntry() {
			return misfitOf(wrong, dynamicpb.NewMessage(inner), at)
		}
		return &bodyError{at, fmt.Sprintf("%s is not a valid value", wrong)}
	}
	return &bodyError{path, "its fields do not go together"}
}

// fieldOf returns the field of a message by either of its names.
func fieldOf(m protoreflect.Message, name string) protoreflect.FieldDescriptor {
	fields := m.Descriptor().Fields()
	return cmp.Or(fields.ByJSONName(name), fields.ByTextName(name))
}

// member is a member of a JSON object.
type member struct {
	name  string
	value json.RawMessage
}

// members returns the members of a JSON object, in order.
func members(object []byte) []member {
	dec := json.NewDecoder(bytes.NewReader(object))
	_, _ = dec.Token() // the body is well formed
	var out []member
	for dec.More() {
		name, _ := dec.Token()
		var one member
		one.name, _ = name.(string)
		if dec.Decode(&one.value) != nil {
			break
		}
		out = append(out, one)
	}
	return out
}

// elements returns the elements of a JSON array.
func elements(array []byte) (out []json.RawMessage) {
	_ = json.Unmarshal(array, &out) // as above
	return out
}

// queryParser parses queries, and its errors name the parameter that does not fit its message.
type queryParser struct{ runtime.DefaultQueryParser }

// setQueryParser makes all muxes of the library parse queries by queryParser: the option of one
// mux writes a variable of the library's package.
var setQueryParser = sync.OnceFunc(func() { runtime.SetQueryParameterParser(&queryParser{})(nil) }) //nolint:gochecknoglobals // it guards one

func (p *queryParser) Parse(m proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	for name, value := range values {
		if p.DefaultQueryParser.Parse(m, url.Values{name: value}, filter) == nil {
			continue
		}
		if field := fieldOf(m.ProtoReflect(), name); field != nil {
			name = string(field.Name())
		}
		return &bodyError{name, fmt.Sprintf("%q is not a valid value", strings.Join(value, ","))}
	}
	return nil
}

// gatewayError responds with an error. An error of the library about a request that it could not
// read gets a reason and a field, as the server's own errors have.
func gatewayError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	if st := status.Convert(err); st.Code() == codes.InvalidArgument && len(st.Details()) == 0 {
		var v peering.Violation
		if json.Unmarshal([]byte(st.Message()), &v) != nil {
			v.Message = st.Message()
		}
		v.Field, v.Message = peering.Text(v.Field, peering.MaxMessageLen), peering.Text(v.Message, peering.MaxMessageLen)
		v.Field = cmp.Or(v.Field, "body")
		err = wire.Status(&peering.Error{Reason: peering.ReasonRequestInvalid, Message: "the request is not valid", Violations: []peering.Violation{v}}).Err()
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// watchBegun is the metadata that a watch sends once its caller was let through. From then on it
// misses no change.
const watchBegun = "entente-watch-begun"

// beginStream sends the header of a watch at once, even before the first message. The library
// calls it then without a message.
func beginStream(ctx context.Context, w http.ResponseWriter, message proto.Message) error {
	if message != nil {
		return nil
	}
	if md, ok := runtime.ServerMetadataFromContext(ctx); !ok || len(md.HeaderMD.Get(watchBegun)) == 0 {
		return nil // not a watch, or one that was refused
	}
	w.Header().Set("Content-Type", streamType)
	w.WriteHeader(http.StatusOK)
	return http.NewResponseController(w).Flush() //nolint:wrapcheck // the writer's own error
}
