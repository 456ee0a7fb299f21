// How gRPC is told the path of a Unix socket to listen on.
#pragma once

#include <string>

namespace cairnfs::control {

// "unix:" and the path. Characters with a meaning in a URI ('#', '?', '%'), and all that are no plain letters or
// digits, are written as %XX. For servers, which undo %XX. Not for channels, which undo it too, but then split the path
// at commas.
std::string SocketUri(const std::string& path);

// The path of the socket for ranks of every user, which lies beside the control socket.
std::string RankSocketPath(const std::string& control_socket_path);

}  // namespace cairnfs::control
