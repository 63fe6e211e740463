package admin

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/version"
)

// streamType is what a watch is in REST: a JSON object a line, each with either
// result or error.
const streamType = "application/x-ndjson"

// describe completes the generated description with what the protos do not have: how callers
// authenticate, how watches are framed, and what a variable in a path means.
func describe(generated []byte) ([]byte, error) {
	var doc map[string]any
	if err := json.Unmarshal(generated, &doc); err != nil {
		return nil, fmt.Errorf("read the description of the API: %w", err)
	}
	doc["info"] = map[string]any{
		"title":       "Entente admin API",
		"version":     version.Version,
		"description": "How a cluster's own people drive Entente. Calls need the Kubernetes permission that each names, in group entente.dev.",
	}
	schemes := map[string]any{
		"bearer":      map[string]any{"type": "http", "scheme": "bearer", "description": "A bearer token of this Kubernetes cluster."},
		"certificate": map[string]any{"type": "mutualTLS", "description": "A client certificate of this Kubernetes cluster."},
	}
	components := object(doc, "components")
	components["securitySchemes"] = schemes
	doc["security"] = []any{map[string]any{"bearer": []any{}}, map[string]any{"certificate": []any{}}}
	streams := map[string]bool{}
	methods := ententev1.File_entente_v1_admin_proto.Services().ByName("AdminService").Methods()
	for i := range methods.Len() {
		if m := methods.Get(i); m.IsStreamingServer() {
			streams[operation(m)] = true
		}
	}
	for path, item := range object(doc, "paths") {
		operations, _ := item.(map[string]any)
		for _, o := range operations {
			op, _ := o.(map[string]any)
			describePath(path, op)
			if id, _ := op["operationId"].(string); streams[id] {
				describeStream(op)
			}
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("write the description of the API: %w", err)
	}
	return out, nil
}

func operation(m protoreflect.MethodDescriptor) string {
	return string(m.Parent().Name()) + "_" + string(m.Name())
}

// object returns a member that is an object, and creates it if it is missing.
func object(in map[string]any, name string) map[string]any {
	out, ok := in[name].(map[string]any)
	if !ok {
		out = map[string]any{}
		in[name] = out
	}
	return out
}

// describePath describes each variable in a path as the last part of a name, which begins with
// the collection before it.
func describePath(path string, op map[string]any) {
	parameters, _ := op["parameters"].([]any)
	for _, p := range parameters {
		param, _ := p.(map[string]any)
		name, _ := param["name"].(string)
		before, _, ok := strings.Cut(path, "/{"+name+"}")
		if param["in"] != "path" || !ok {
			continue
		}
		collection := before[strings.LastIndexByte(before, '/')+1:]
		param["description"] = fmt.Sprintf("What follows %s/ in the name.", collection)
	}
}

// describeStream describes the response as many messages, one a line.
func describeStream(op map[string]any) {
	ok := object(object(op, "responses"), "200")
	content := object(object(ok, "content"), "application/json")
	ok["content"] = map[string]any{streamType: map[string]any{"schema": map[string]any{
		"type":        "object",
		"description": "One line. The stream goes on until the caller or the server ends it; an error is the last line.",
		"properties": map[string]any{
			"result": content["schema"],
			"error":  map[string]any{"$ref": "#/components/schemas/google.rpc.Status"},
		},
	}}}
}
