// Command kubeproxy says which endpoints kube-proxy uses: by its own code, without a network.
//
// Each line of standard input is a JSON object with a Service, its EndpointSlices and nodes.
// Each line of standard output is a JSON object: for each node by name, and each address family, the addresses to
// which kube-proxy on that node sends what comes for the Service's cluster IP.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
)

const longestLine = 64 << 20

type world struct {
	Service v1.Service
	Slices  []discovery.EndpointSlice
	Nodes   []v1.Node
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var given world
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		used := map[string]map[v1.IPFamily][]string{}
		for _, node := range given.Nodes {
			used[node.Name] = map[v1.IPFamily][]string{}
			for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
				used[node.Name][family] = usedOn(&node, &given, family)
			}
		}
		line, err := json.Marshal(used)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(string(line))
	}
}

// usedOn returns the addresses that kube-proxy on a node uses for some port of the Service.
func usedOn(node *v1.Node, given *world, family v1.IPFamily) []string {
	serviceChanges := proxy.NewServiceChangeTracker(family, nil, nil)
	serviceChanges.Update(nil, &given.Service)
	ports := proxy.ServicePortMap{}
	ports.Update(serviceChanges)
	endpointChanges := proxy.NewEndpointsChangeTracker(family, node.Name, nil, nil)
	for index := range given.Slices {
		endpointChanges.EndpointSliceUpdate(&given.Slices[index], false)
	}
	endpoints := proxy.EndpointsMap{}
	endpoints.Update(endpointChanges)
	addresses := []string{}
	for name, port := range ports {
		used, local, _, _ := proxy.CategorizeEndpoints(endpoints[name], port, node.Name, node.Labels)
		if port.InternalPolicyLocal() {
			used = local
		}
		for _, endpoint := range used {
			addresses = append(addresses, endpoint.IP())
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}
